/* Tokens of the mock server: what an event looks like, when it is due, and what was really sent when. */
#include "mock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { MAX_STREAMS = 65536, HEADER_ROOM = 16 };

struct totals totals;
static struct conn *heap[MAX_STREAMS];
static int heap_len;
static struct line slot_wait, running; /* for one of --slots; for the token after one that was sent */

/* ---- lines ---- */

static void line_add(struct line *line, struct conn *c) {
  c->line = line, c->next = NULL, c->before = line->tail;
  if (line->tail) line->tail->next = c; else line->head = c;
  line->tail = c;
}

static void line_remove(struct conn *c) {
  struct line *line = c->line;
  if (!line) return;
  if (c->before) c->before->next = c->next; else line->head = c->next;
  if (c->next) c->next->before = c->before; else line->tail = c->before;
  c->line = NULL;
}

/* ---- what is due ----
 *
 * First tokens stand in a heap. Each later one is due the same time after the one before it, and those are sent in the
 * order in which they were due: a line is in order by itself, and costs no walk over cold memory per event. */

static void heap_place(int at, struct conn *c) { heap[at] = c, c->heap_at = at; }

static void heap_sift(int at, struct conn *c) {
  while (at && heap[(at - 1) / 2]->due > c->due) heap_place(at, heap[(at - 1) / 2]), at = (at - 1) / 2;
  for (int child; (child = 2 * at + 1) < heap_len; at = child) {
    if (child + 1 < heap_len && heap[child + 1]->due < heap[child]->due) child++;
    if (heap[child]->due >= c->due) break;
    heap_place(at, heap[child]);
  }
  heap_place(at, c);
}

static void heap_push(struct conn *c) { heap_len++, heap_sift(heap_len - 1, c); }

static void heap_remove(struct conn *c) {
  int at = c->heap_at;
  if (at < 0) return;
  struct conn *last = heap[--heap_len];
  c->heap_at = -1;
  if (last != c) heap_sift(at, last);
}

struct conn *next_due(void) {
  struct conn *later = running.head;
  return heap_len && (!later || heap[0]->due < later->due) ? heap[0] : later;
}

static void plan_next(struct conn *c) {
  heap_remove(c);
  line_remove(c);
  c->due += flag.itl;
  line_add(&running, c);
  const char *soon = (const char *)running.head; /* by the time it is sent, it will be in the cache */
  for (size_t at = 0; at < offsetof(struct conn, event) + 384; at += 64) __builtin_prefetch(soon + at, 1);
}

/* ---- bytes out ---- */

void send_bytes(struct conn *c, const char *bytes, size_t len) {
  ssize_t written = 0;
  if (!c->out_len) {
    written = send(c->fd, bytes, len, MSG_NOSIGNAL);
    if (written == (ssize_t)len) return;
    if (written < 0 && errno != EAGAIN) { c->dead = true; return; }
    if (written < 0) written = 0;
    totals.blocked_writes++; /* the peer does not read fast enough: keep the rest, on time as far as this server goes */
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = EPOLLIN | EPOLLOUT, .data.fd = c->fd});
  }
  size_t rest = len - (size_t)written;
  if (c->out_off + c->out_len + rest > c->out_cap)
    c->out = realloc(c->out, c->out_cap = 2 * (c->out_off + c->out_len + rest));
  memcpy(c->out + c->out_off + c->out_len, bytes + written, rest);
  c->out_len += rest;
}

void flush_out(struct conn *c) {
  ssize_t written = send(c->fd, c->out + c->out_off, c->out_len, MSG_NOSIGNAL);
  if (written < 0) { c->dead = errno != EAGAIN; return; }
  c->out_off += (size_t)written, c->out_len -= (size_t)written;
  if (c->out_len) return;
  c->out_off = 0;
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = c->fd});
}

void respond(struct conn *c, const char *status, const char *type, const char *body) {
  char head[256];
  int len = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nserver: mock\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n",
                     status, type, strlen(body));
  send_bytes(c, head, (size_t)len);
  send_bytes(c, body, strlen(body));
}

/* ---- events ---- */

/* Render into c->event, with HTTP chunk framing. Token id and counts have a fixed width, so that the next token only
 * overwrites those bytes; every token has the same text. */
static void render_event(struct conn *c, const char *choice, bool content) {
  char *json = c->event + HEADER_ROOM;
  size_t room = sizeof c->event - HEADER_ROOM - 8;
  int len = snprintf(json, room, "data: {\"id\":\"%s-%024x\",\"object\":\"%s\",\"created\":1764000000,\"model\":\"%s\",\"choices\":[",
                     c->chat ? "chatcmpl" : "cmpl", c->record, c->chat ? "chat.completion.chunk" : "text_completion", c->model);
  int choice_at = len;
  len += snprintf(json + len, room - (size_t)len, "%s]", choice);
  c->total_at = 0;
  if (c->usage && (c->continuous || !content)) {
    len += snprintf(json + len, room - (size_t)len, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":", c->prompt);
    c->total_at = len + HEADER_ROOM;
    len += snprintf(json + len, room - (size_t)len, "%7d,\"completion_tokens\":%7d}", c->prompt + c->sent, c->sent);
  } else if (c->usage) {
    len += snprintf(json + len, room - (size_t)len, ",\"usage\":null");
  }
  len += snprintf(json + len, room - (size_t)len, "}\n\n");
  char *id = content && c->token_ids ? strstr(json + choice_at, "[00000]") : NULL;
  c->id_at = id ? (int)(id - c->event) + 1 : 0;
  char hex[HEADER_ROOM];
  int hex_len = snprintf(hex, sizeof hex, "%x\r\n", (unsigned)len);
  c->event_at = HEADER_ROOM - hex_len;
  memcpy(c->event + c->event_at, hex, (size_t)hex_len);
  memcpy(json + len, "\r\n", 2);
  c->event_len = hex_len + len + 2;
}

static void render_token(struct conn *c, const char *finish) {
  char choice[320];
  const char *ids = c->token_ids ? "[00000]" : "null";
  if (c->chat)
    snprintf(choice, sizeof choice, "{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":%s}", flag.text, finish, ids);
  else
    snprintf(choice, sizeof choice,
             "{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,\"token_ids\":%s,\"prompt_token_ids\":null}",
             flag.text, finish, ids);
  render_event(c, choice, true);
}

static void put_digits(char *end, int value, int width, char pad) {
  for (; width-- > 0; value /= 10) *--end = value || pad == '0' ? (char)('0' + value % 10) : pad;
}

static void patch_token(struct conn *c) {
  if (c->id_at) put_digits(c->event + c->id_at + 5, 10000 + (c->sent * 7919) % 90000, 5, '0');
  if (c->total_at) {
    put_digits(c->event + c->total_at + 7, c->prompt + c->sent, 7, ' ');
    put_digits(c->event + c->total_at + 35, c->sent, 7, ' ');
  }
}

static void start_stream(struct conn *c, int64_t start) {
  totals.active++;
  if (totals.active > totals.active_max) totals.active_max = totals.active;
  double u = (double)(totals.streams++) * 0.6180339887498949;
  c->due = start + flag.ttft + (int64_t)((u - (double)(int64_t)u) * (double)flag.spread);
  if (!c->stream) c->due += (c->asked - 1) * flag.itl;
  render_token(c, c->asked == 1 ? "\"length\"" : "null");
  heap_push(c);
}

void begin(struct conn *c, int64_t now) {
  c->busy = true;
  if (flag.slots && totals.active >= flag.slots) line_add(&slot_wait, c); else start_stream(c, now);
}

void end_stream(struct conn *c, enum outcome outcome, int64_t now) {
  struct record *r = &records[c->record];
  r->sent = c->sent, r->last = c->previous, r->outcome = outcome;
  totals.finished[outcome]++;
  if (outcome == DONE && c->sent > 1 && c->stream) hist_add(&totals.tpot, (r->last - r->first) / (c->sent - 1));
  c->busy = false;
  bool waited = c->line == &slot_wait;
  line_remove(c);
  if (waited) return;
  heap_remove(c);
  totals.active--;
  struct conn *next = slot_wait.head;
  if (next) line_remove(next), start_stream(next, now);
}

static void send_whole(struct conn *c, int64_t now) {
  struct record *r = &records[c->record];
  char *body = malloc((size_t)c->asked * strlen(flag.text) + 512);
  int len = sprintf(body, c->chat ? "{\"id\":\"chatcmpl-%u\",\"object\":\"chat.completion\",\"model\":\"%s\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
                                  : "{\"id\":\"cmpl-%u\",\"object\":\"text_completion\",\"model\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"",
                    c->record, c->model);
  for (int i = 0; i < c->asked; i++) len += sprintf(body + len, "%s", flag.text);
  sprintf(body + len, "\"%s,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}}",
          c->chat ? "}" : "", c->prompt, c->prompt + c->asked, c->asked);
  respond(c, "200 OK", "application/json", body);
  free(body);
  r->first = c->previous = totals.last_event = now, c->sent = c->asked, totals.tokens++;
  end_stream(c, DONE, now);
}

static void finish_bytes(struct conn *c) {
  char tail[1200];
  int len = 0;
  if (c->usage) {
    render_event(c, "", false);
    memcpy(tail, c->event + c->event_at, (size_t)c->event_len), len = c->event_len;
  }
  len += sprintf(tail + len, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  send_bytes(c, tail, (size_t)len);
}

static void send_first(struct conn *c, int64_t now) {
  static const char head[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
  send_bytes(c, head, sizeof head - 1);
  if (c->chat) {
    render_event(c, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}", false);
    send_bytes(c, c->event + c->event_at, (size_t)c->event_len);
    render_token(c, c->asked == 1 ? "\"length\"" : "null");
  }
  records[c->record].first = now;
  hist_add(&totals.ttft, now - records[c->record].arrival);
}

void send_token(struct conn *c, int64_t now) {
  hist_add(&totals.lateness, now - c->due);
  if (!c->stream) { send_whole(c, now); return; }
  if (c->cut_at && c->sent == c->cut_at) { end_stream(c, CUT, now), c->dead = true; return; }
  if (c->sent == 0) send_first(c, now);
  else hist_add(&totals.gap, now - c->previous);
  c->sent++, totals.tokens++;
  if (c->sent == c->asked && c->sent > 1) render_token(c, "\"length\"");
  patch_token(c);
  send_bytes(c, c->event + c->event_at, (size_t)c->event_len);
  c->previous = totals.last_event = now;
  if (c->sent == c->asked) {
    finish_bytes(c);
    end_stream(c, DONE, now);
    if (c->in_len && !c->dead) parse_input(c, now);
  } else {
    plan_next(c);
  }
}
