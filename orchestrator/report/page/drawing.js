"use strict";
/* Draws charts when they can be seen: one in each animation frame, and none that lies out of sight. */
const drawing = (() => {
  const NEARLY_IN_SIGHT = "200px";

  class Charts {
    /* drawings: by id of the element, a function that draws into an ECharts instance; it returns
       false where the chart shows its figures already. drawn: called when every chart in sight is
       drawn. */
    constructor(drawings, drawn) {
      this.drawings = drawings;
      this.drawn = drawn;
      this.instances = new Map();
      this.stale = new Set();
      this.inSight = new Set();
      this.isScheduled = false;
      this.isLooking = false;
      this.observer = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: NEARLY_IN_SIGHT });
    }

    /* Finds out anew which charts are in sight; the browser tells after its next layout. */
    look() {
      this.isLooking = true;
      this.inSight.clear();
      this.observer.disconnect();
      for (const id of Object.keys(this.drawings)) this.observer.observe(document.getElementById(id));
    }

    /* What these charts show has changed. */
    redraw(ids = Object.keys(this.drawings)) {
      for (const id of ids) this.stale.add(id);
      this.schedule();
    }

    /* Draws everything at once, for paper. */
    drawAll() {
      for (const id of Object.keys(this.drawings)) this.draw(id);
    }

    resize() {
      for (const instance of this.instances.values()) instance.resize();
    }

    seen(entries) {
      this.isLooking = false;
      for (const entry of entries) {
        if (entry.isIntersecting) this.inSight.add(entry.target.id);
        else this.inSight.delete(entry.target.id);
      }
      this.schedule();
    }

    next() {
      return Object.keys(this.drawings).find((id) => this.stale.has(id) && this.inSight.has(id));
    }

    schedule() {
      if (this.isScheduled) return;
      this.isScheduled = true;
      requestAnimationFrame(() => this.drawNext());
    }

    drawNext() {
      this.isScheduled = false;
      if (this.isLooking) return;
      let id = this.next();
      while (id !== undefined && !this.draw(id)) id = this.next();
      if (this.next() === undefined) this.drawn();
      else this.schedule();
    }

    /* Returns whether that took a frame's time. */
    draw(id) {
      const element = document.getElementById(id);
      if (element.clientWidth === 0) return true;  // it is hidden, and drawn when it comes into sight
      this.stale.delete(id);
      if (!this.instances.has(id)) this.instances.set(id, echarts.init(element, null, { renderer: "canvas" }));
      return this.drawings[id](this.instances.get(id)) !== false;
    }
  }

  return { Charts };
})();
