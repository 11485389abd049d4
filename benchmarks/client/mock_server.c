/* An OpenAI-compatible server of known timing: what a load generator reports is compared with what was really sent.
 *
 * One thread, epoll, HTTP/1.1 keep-alive, chunked server-sent events shaped like vLLM's. Token i of a stream is due at
 * start + ttft + spread * u + i * itl (u: a fixed low-discrepancy sequence over requests, so that streams do not march
 * in step) and goes out in a write of its own. The server records when it really wrote: its lateness is known and is
 * never mistaken for the client's error. An emulation for benchmarks: it holds no model.
 *
 *   POST /v1/completions, /v1/chat/completions   max_tokens, stream, stream_options, return_token_ids are honoured
 *   GET  /v1/models  /health  /stats
 */
#define _GNU_SOURCE
#include "clock.h"
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FD = 65536, MAX_BODY = 64 << 20, BURST = 32, HEADER_ROOM = 16 };
enum outcome { OPEN, DONE, ERROR, CUT, ABORTED };
static const char *const OUTCOMES[] = {"open", "done", "error", "cut", "aborted"};

static struct {
  int port, slots, error_every, cut_every, default_tokens;
  int64_t ttft, itl, spread;
  const char *model, *text, *stats_file, *log_file;
} flag = {.port = 18000, .default_tokens = 16, .ttft = 50000000, .itl = 20000000, .spread = -1, .model = "mock", .text = " word"};

struct record { /* one line of --log */
  int64_t arrival, first, last;
  int prompt, asked, sent;
  enum outcome outcome;
};

struct conn {
  int fd, heap_at; /* heap_at: index in the timer heap, -1 when no token is due */
  char *in, *out;
  size_t in_len, in_cap, out_off, out_len, out_cap;
  bool busy, waiting, chat, stream, usage, continuous, token_ids, dead;
  int prompt, asked, sent, cut_at;
  int64_t due, previous;
  uint32_t record;
  struct conn *next_waiting, *previous_waiting;
  char model[128], event[1024];
  int event_at, event_len, id_at, total_at;
};

static struct conn *conns[MAX_FD];
static struct conn *heap[MAX_FD];
static int heap_len, epoll_fd, active, active_max, connections, connections_max;
static struct conn *queue_head, *queue_tail;
static struct record *records;
static uint32_t record_count, record_cap, finished[5], refused;
static uint64_t streams, events, blocked_writes;
static int64_t last_event;
static struct hist lateness, ttft, gap, tpot, loop_time;
static volatile sig_atomic_t stopping;

/* ---- timer heap, earliest due first ---- */

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

/* ---- queue for --slots ---- */

static void queue_remove(struct conn *c) {
  if (!c->waiting) return;
  if (c->previous_waiting) c->previous_waiting->next_waiting = c->next_waiting; else queue_head = c->next_waiting;
  if (c->next_waiting) c->next_waiting->previous_waiting = c->previous_waiting; else queue_tail = c->previous_waiting;
  c->waiting = false;
}

static void queue_add(struct conn *c) {
  c->waiting = true, c->next_waiting = NULL, c->previous_waiting = queue_tail;
  if (queue_tail) queue_tail->next_waiting = c; else queue_head = c;
  queue_tail = c;
}

/* ---- bytes out ---- */

static void send_bytes(struct conn *c, const char *bytes, size_t len) {
  ssize_t written = 0;
  if (!c->out_len) {
    written = send(c->fd, bytes, len, MSG_NOSIGNAL);
    if (written == (ssize_t)len) return;
    if (written < 0 && errno != EAGAIN) { c->dead = true; return; }
    if (written < 0) written = 0;
    blocked_writes++; /* the peer does not read fast enough: keep the rest, on time as far as this server goes */
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = EPOLLIN | EPOLLOUT, .data.fd = c->fd});
  }
  size_t rest = len - (size_t)written;
  if (c->out_off + c->out_len + rest > c->out_cap)
    c->out = realloc(c->out, c->out_cap = 2 * (c->out_off + c->out_len + rest));
  memcpy(c->out + c->out_off + c->out_len, bytes + written, rest);
  c->out_len += rest;
}

static void flush_out(struct conn *c) {
  ssize_t written = send(c->fd, c->out + c->out_off, c->out_len, MSG_NOSIGNAL);
  if (written < 0) { c->dead = errno != EAGAIN; return; }
  c->out_off += (size_t)written, c->out_len -= (size_t)written;
  if (c->out_len) return;
  c->out_off = 0;
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = c->fd});
}

static void respond(struct conn *c, const char *status, const char *type, const char *body) {
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
  active++;
  if (active > active_max) active_max = active;
  double u = (double)(streams++) * 0.6180339887498949;
  c->due = start + flag.ttft + (int64_t)((u - (double)(int64_t)u) * (double)flag.spread);
  if (!c->stream) c->due += (c->asked - 1) * flag.itl;
  render_token(c, c->asked == 1 ? "\"length\"" : "null");
  heap_push(c);
}

static void parse_input(struct conn *c, int64_t now);

static void end_stream(struct conn *c, enum outcome outcome, int64_t now) {
  struct record *r = &records[c->record];
  r->sent = c->sent, r->last = c->previous, r->outcome = outcome;
  finished[outcome]++;
  if (outcome == DONE && c->sent > 1 && c->stream) hist_add(&tpot, (r->last - r->first) / (c->sent - 1));
  c->busy = false;
  if (c->waiting) { queue_remove(c); return; }
  heap_remove(c);
  active--;
  struct conn *next = queue_head;
  if (next) queue_remove(next), start_stream(next, now);
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
  r->first = c->previous = last_event = now, c->sent = c->asked, events++;
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
  hist_add(&ttft, now - records[c->record].arrival);
}

static void send_token(struct conn *c) {
  int64_t now = now_ns();
  hist_add(&lateness, now - c->due);
  if (!c->stream) { send_whole(c, now); return; }
  if (c->cut_at && c->sent == c->cut_at) { end_stream(c, CUT, now), c->dead = true; return; }
  if (c->sent == 0) send_first(c, now);
  else hist_add(&gap, now - c->previous);
  c->sent++, events++;
  if (c->sent == c->asked && c->sent > 1) render_token(c, "\"length\"");
  patch_token(c);
  send_bytes(c, c->event + c->event_at, (size_t)c->event_len);
  c->previous = last_event = now;
  if (c->sent == c->asked) {
    finish_bytes(c);
    end_stream(c, DONE, now);
    if (c->in_len && !c->dead) parse_input(c, now);
  } else {
    c->due += flag.itl;
    heap_sift(c->heap_at, c);
  }
}

/* ---- requests in ---- */

static const char *find(const char *body, size_t len, const char *key) {
  const char *at = memmem(body, len, key, strlen(key));
  if (!at) return NULL;
  for (at += strlen(key); at < body + len && (*at == ' ' || *at == ':'); at++) {}
  return at < body + len ? at : NULL;
}

static bool is_true(const char *body, size_t len, const char *key) {
  const char *at = find(body, len, key);
  return at && *at == 't';
}

static int read_int(const char *body, size_t len, const char *key, int fallback) {
  const char *at = find(body, len, key);
  return at && isdigit((unsigned char)*at) ? atoi(at) : fallback;
}

/* Token ids are counted; text is taken as four bytes a token, roughly. */
static int count_prompt(const char *body, size_t len) {
  const char *at = find(body, len, "\"prompt\""), *end = body + len;
  if (!at || *at != '[') return (int)(len / 4);
  while (at < end && (*at == '[' || *at == ' ')) at++;
  if (at >= end || !isdigit((unsigned char)*at)) return (int)(len / 4);
  int count = 1;
  for (; at < end && *at != ']'; at++) count += *at == ',';
  return count;
}

static void start_request(struct conn *c, const char *body, size_t len, bool chat, int64_t now) {
  if (record_count == record_cap) records = realloc(records, sizeof *records * (record_cap = record_cap ? 2 * record_cap : 4096));
  c->record = record_count++;
  struct record *r = &records[c->record];
  c->chat = chat, c->sent = 0, c->previous = 0;
  c->stream = is_true(body, len, "\"stream\""), c->usage = is_true(body, len, "\"include_usage\"");
  c->continuous = is_true(body, len, "\"continuous_usage_stats\""), c->token_ids = is_true(body, len, "\"return_token_ids\"");
  c->asked = read_int(body, len, "\"max_tokens\"", read_int(body, len, "\"max_completion_tokens\"", flag.default_tokens));
  if (c->asked < 1) c->asked = 1;
  c->prompt = count_prompt(body, len);
  const char *model = find(body, len, "\"model\"");
  snprintf(c->model, sizeof c->model, "%s", flag.model);
  if (model && *model == '"') snprintf(c->model, sizeof c->model, "%.*s", (int)strcspn(model + 1, "\"\\"), model + 1);
  *r = (struct record){.arrival = now, .prompt = c->prompt, .asked = c->asked};
  if (flag.error_every && record_count % (uint32_t)flag.error_every == 0) {
    r->outcome = ERROR, finished[ERROR]++;
    respond(c, "500 Internal Server Error", "application/json",
            "{\"error\":{\"message\":\"mock failure\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
    return;
  }
  uint64_t admitted = record_count - finished[ERROR];
  c->cut_at = flag.cut_every && admitted % (uint64_t)flag.cut_every == 0 ? (c->asked + 1) / 2 : 0;
  c->busy = true;
  if (flag.slots && active >= flag.slots) queue_add(c); else start_stream(c, now);
}

static char *stats_json(void) {
  static char text[4096];
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  int len = snprintf(text, sizeof text,
                     "{\"requests\": %u, \"done\": %u, \"errors\": %u, \"cuts\": %u, \"aborted\": %u, \"refused\": %u, \"tokens\": %llu, "
                     "\"blocked_writes\": %llu, \"active_max\": %d, \"connections_max\": %d, \"first_arrival_ns\": %lld, "
                     "\"last_event_ns\": %lld, \"cpu_s\": %.3f, ",
                     record_count, finished[DONE], finished[ERROR], finished[CUT], finished[ABORTED], refused,
                     (unsigned long long)events, (unsigned long long)blocked_writes, active_max, connections_max,
                     (long long)(record_count ? records[0].arrival : 0), (long long)last_event, cpu);
  struct { const struct hist *h; const char *name; } all[] = {
      {&lateness, "lateness_ms"}, {&ttft, "ttft_ms"}, {&gap, "itl_ms"}, {&tpot, "tpot_ms"}, {&loop_time, "loop_ms"}};
  for (int i = 0; i < 5; i++) {
    len += hist_json(all[i].h, all[i].name, text + len, sizeof text - (size_t)len);
    len += sprintf(text + len, i < 4 ? ", " : "}\n");
  }
  return text;
}

static void answer(struct conn *c, const char *head, const char *body, size_t body_len, int64_t now) {
  char models[512];
  if (!strncmp(head, "POST /v1/completions", 20)) { start_request(c, body, body_len, false, now); return; }
  if (!strncmp(head, "POST /v1/chat/completions", 25)) { start_request(c, body, body_len, true, now); return; }
  if (!strncmp(head, "GET /health", 11)) { respond(c, "200 OK", "text/plain", ""); return; }
  if (!strncmp(head, "GET /stats", 10)) { respond(c, "200 OK", "application/json", stats_json()); return; }
  if (!strncmp(head, "GET /v1/models", 14)) {
    snprintf(models, sizeof models, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1764000000,\"owned_by\":\"mock\",\"max_model_len\":131072}]}", flag.model);
    respond(c, "200 OK", "application/json", models);
    return;
  }
  refused++;
  respond(c, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
}

static void parse_input(struct conn *c, int64_t now) {
  while (!c->busy && !c->dead && c->in_len) {
    char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end) return;
    size_t head_len = (size_t)(end - c->in) + 4;
    *end = 0;
    const char *length = strcasestr(c->in, "\ncontent-length:");
    size_t body_len = length ? strtoul(length + 16, NULL, 10) : 0;
    bool expects = strcasestr(c->in, "\nexpect: 100-continue") != NULL;
    *end = '\r';
    if (body_len > MAX_BODY) { c->dead = true; return; }
    if (c->in_len < head_len + body_len) {
      if (expects && c->in_len == head_len) send_bytes(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
      return;
    }
    answer(c, c->in, c->in + head_len, body_len, now);
    c->in_len -= head_len + body_len;
    memmove(c->in, c->in + head_len + body_len, c->in_len);
  }
}

static void read_input(struct conn *c) {
  if (c->in_cap - c->in_len < 65536) c->in = realloc(c->in, c->in_cap = 2 * c->in_cap + 65536);
  ssize_t got = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len - 1, 0);
  if (got <= 0) { c->dead = got == 0 || errno != EAGAIN; return; }
  c->in_len += (size_t)got;
  c->in[c->in_len] = 0;
  parse_input(c, now_ns());
}

static void close_conn(struct conn *c) {
  if (c->busy) end_stream(c, ABORTED, now_ns());
  conns[c->fd] = NULL;
  close(c->fd);
  connections--;
  free(c->in), free(c->out), free(c);
}

static void accept_all(int listener) {
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
    if (fd >= MAX_FD) { close(fd); continue; }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    struct conn *c = conns[fd] = calloc(1, sizeof *c);
    c->fd = fd, c->heap_at = -1;
    if (++connections > connections_max) connections_max = connections;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
  }
}

/* ---- main ---- */

static void serve(int listener) {
  struct epoll_event ready[256];
  while (!stopping) {
    int64_t began = now_ns();
    for (int i = 0; i < BURST && heap_len && heap[0]->due <= now_ns(); i++) {
      struct conn *c = heap[0];
      send_token(c);
      if (c->dead) close_conn(c);
    }
    int64_t now = now_ns(), wait = heap_len ? heap[0]->due - now : 100000000;
    if (wait < 0) wait = 0;
    if (wait > 100000000) wait = 100000000;
    hist_add(&loop_time, now - began);
    int n = epoll_pwait2(epoll_fd, ready, 256, &(struct timespec){.tv_nsec = wait}, NULL);
    for (int i = 0; i < n; i++) {
      int fd = ready[i].data.fd;
      if (fd == listener) { accept_all(listener); continue; }
      struct conn *c = conns[fd];
      if (!c) continue;
      if (ready[i].events & EPOLLOUT) flush_out(c);
      if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_input(c);
      if (c->dead) close_conn(c);
    }
  }
}

static void write_results(void) {
  FILE *out = flag.stats_file ? fopen(flag.stats_file, "w") : stdout;
  if (out) fputs(stats_json(), out), fflush(out);
  FILE *log = flag.log_file ? fopen(flag.log_file, "w") : NULL;
  if (!log) return;
  fputs("arrival_ns,first_ns,last_ns,prompt_tokens,tokens_asked,tokens_sent,outcome\n", log);
  for (uint32_t i = 0; i < record_count; i++) {
    struct record *r = &records[i];
    fprintf(log, "%lld,%lld,%lld,%d,%d,%d,%s\n", (long long)r->arrival, (long long)r->first, (long long)r->last, r->prompt, r->asked, r->sent, OUTCOMES[r->outcome]);
  }
  fclose(log);
}

static int64_t ms(const char *text) { return (int64_t)(atof(text) * 1e6); }

static void parse_flags(int argc, char **argv) {
  for (int i = 1; i < argc; i += 2) {
    const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (value && !strcmp(name, "--port")) flag.port = atoi(value);
    else if (value && !strcmp(name, "--ttft-ms")) flag.ttft = ms(value);
    else if (value && !strcmp(name, "--itl-ms")) flag.itl = ms(value);
    else if (value && !strcmp(name, "--spread-ms")) flag.spread = ms(value);
    else if (value && !strcmp(name, "--slots")) flag.slots = atoi(value);
    else if (value && !strcmp(name, "--error-every")) flag.error_every = atoi(value);
    else if (value && !strcmp(name, "--cut-every")) flag.cut_every = atoi(value);
    else if (value && !strcmp(name, "--tokens")) flag.default_tokens = atoi(value);
    else if (value && !strcmp(name, "--model")) flag.model = value;
    else if (value && !strcmp(name, "--text")) flag.text = value;
    else if (value && !strcmp(name, "--stats")) flag.stats_file = value;
    else if (value && !strcmp(name, "--log")) flag.log_file = value;
    else {
      fprintf(stderr, "usage: mock_server [--port N] [--ttft-ms X] [--itl-ms X] [--spread-ms X (default: itl)] [--slots N]\n"
                      "  [--error-every N] [--cut-every N] [--tokens N (when none are asked)] [--model NAME] [--stats FILE] [--log FILE]\n"
                      "  [--text TEXT (of every token: JSON-safe, at most 64 bytes)]\n");
      exit(2);
    }
  }
  if (flag.spread < 0) flag.spread = flag.itl;
  if (strlen(flag.text) > 64 || strpbrk(flag.text, "\"\\")) fprintf(stderr, "mock_server: --text is at most 64 bytes, without quote or backslash\n"), exit(2);
}

static void on_signal(int number) { (void)number, stopping = 1; }

int main(int argc, char **argv) {
  parse_flags(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal}, NULL);
  sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal}, NULL);
  setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = MAX_FD, .rlim_max = MAX_FD});
  prctl(PR_SET_TIMERSLACK, 1);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)flag.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) { perror("mock_server"); return 1; }
  epoll_fd = epoll_create1(0);
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener});
  fprintf(stderr, "mock_server on 127.0.0.1:%d\n", flag.port);
  serve(listener);
  write_results();
  return 0;
}
