"use strict";
/* Draws charts when they can be seen: in each animation frame one, and those after it that fit into
   what is left of the frame; none that lies out of sight. */
const drawing = (() => {
  const NEARLY_IN_SIGHT = "200px";
  const FRAME_MS = 16;

  class Charts {
    /* drawings: by id of the element, a function that draws into an ECharts instance. drawn: called
       when every chart in sight is drawn. */
    constructor(drawings, drawn) {
      this.drawings = drawings;
      this.drawn = drawn;
      this.instances = new Map();
      this.stale = new Set();
      this.inSight = new Set();
      this.lastDrawMs = new Map();
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

    /* Fits the charts to their places, which may have changed while they were hidden. */
    resize() {
      for (const [id, instance] of this.instances) {
        if (document.getElementById(id).clientWidth > 0) instance.resize();
      }
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
      const began = performance.now();
      let id = this.next();
      while (id !== undefined) {
        this.draw(id);
        id = this.next();
        const usedMs = performance.now() - began;
        if (id !== undefined && usedMs + this.expectedDrawMs(id) > FRAME_MS) break;
      }
      if (id === undefined) this.drawn();
      else this.schedule();
    }

    /* What it took the last time; a chart that was never drawn gets a frame of its own. */
    expectedDrawMs(id) {
      return this.lastDrawMs.get(id) ?? FRAME_MS;
    }

    draw(id) {
      const element = document.getElementById(id);
      if (element.clientWidth === 0) {  // it is hidden, and drawn when it comes into sight
        this.inSight.delete(id);
        return;
      }
      this.stale.delete(id);
      if (!this.instances.has(id)) this.instances.set(id, echarts.init(element, null, { renderer: "canvas" }));
      const began = performance.now();
      this.drawings[id](this.instances.get(id));
      this.lastDrawMs.set(id, performance.now() - began);
    }
  }

  /* Draws the charts (of class Charts) again when the browser's colours change, and all of them, in the
     colours of a light page, when the page is printed. */
  function followBrowser(drawn) {
    function takeTheme() {
      charts.takeTheme(document.documentElement);
      drawn.redraw();
    }

    function drawForPaper() {
      document.documentElement.dataset.printing = "";
      takeTheme();
      drawn.resize();
      drawn.drawAll();
    }

    function leavePaper() {
      delete document.documentElement.dataset.printing;
      takeTheme();
    }

    addEventListener("beforeprint", drawForPaper);
    addEventListener("afterprint", leavePaper);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", takeTheme);
  }

  return { Charts, followBrowser };
})();
