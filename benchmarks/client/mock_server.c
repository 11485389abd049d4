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
#include "mock.h"
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FD = 65536, MAX_BODY = 64 << 20 };
enum { LOOK_EVERY = 25000, AWAKE = 10000, IDLE = 100000000 }; /* ns: looks at sockets, awake before a token, asleep at most */
static const char *const OUTCOMES[] = {"open", "done", "error", "cut", "aborted"};

struct flags flag = {
    .port = 18000, .default_tokens = 16, .ttft = 50000000, .itl = 20000000, .spread = -1, .model = "mock", .text = " word"};
struct record *records;
int epoll_fd;
static struct conn *conns[MAX_FD];
static int connections, connections_max;
static uint32_t record_count, record_cap, refused;
static volatile sig_atomic_t stopping;

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
    r->outcome = ERROR, totals.finished[ERROR]++;
    respond(c, "500 Internal Server Error", "application/json",
            "{\"error\":{\"message\":\"mock failure\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
    return;
  }
  uint64_t admitted = record_count - totals.finished[ERROR];
  c->cut_at = flag.cut_every && admitted % (uint64_t)flag.cut_every == 0 ? (c->asked + 1) / 2 : 0;
  begin(c, now);
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
                     record_count, totals.finished[DONE], totals.finished[ERROR], totals.finished[CUT], totals.finished[ABORTED], refused,
                     (unsigned long long)totals.tokens, (unsigned long long)totals.blocked_writes, totals.active_max, connections_max,
                     (long long)(record_count ? records[0].arrival : 0), (long long)totals.last_event, cpu);
  struct { const struct hist *h; const char *name; } all[] = {
      {&totals.lateness, "lateness_ms"}, {&totals.ttft, "ttft_ms"}, {&totals.gap, "itl_ms"}, {&totals.tpot, "tpot_ms"}};
  for (int i = 0; i < 4; i++) {
    len += hist_json(all[i].h, all[i].name, text + len, sizeof text - (size_t)len);
    len += sprintf(text + len, i < 3 ? ", " : "}\n");
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

void parse_input(struct conn *c, int64_t now) {
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

static void take_in(int listener, int64_t wait) {
  struct epoll_event ready[16]; /* few: a request costs more than a token, and tokens wait meanwhile */
  int n = epoll_pwait2(epoll_fd, ready, 16, &(struct timespec){.tv_nsec = wait}, NULL);
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

/* Waking from a sleep costs more than a token does: near the next one this waits awake. */
static void serve(int listener) {
  for (int64_t looked = 0, now; !stopping;) {
    now = now_ns();
    struct conn *due = next_due();
    bool behind = due && due->due <= now, look = now - looked >= (behind ? 4 * LOOK_EVERY : LOOK_EVERY);
    if (!look && behind) {
      send_token(due, now);
      if (due->dead) close_conn(due);
      continue;
    }
    int64_t wait = due ? due->due - now - AWAKE : IDLE;
    if (!look && wait <= 0) continue;
    take_in(listener, wait < 0 ? 0 : wait > IDLE ? IDLE : wait);
    looked = now_ns();
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
