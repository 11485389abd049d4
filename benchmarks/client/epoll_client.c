/* The yardstick: about the least a client can do. N keep-alive streams in a closed loop, epoll, one timestamp per read,
 * HTTP chunks walked (one chunk is one event, as mock_server sends them), nothing else parsed or kept.
 *
 *   epoll_client --port P --streams N --requests M --tokens T [--prompt-tokens K] [--awake 1]
 *
 * --awake 1 never sleeps: then no write of the server has to wake it, which is the dearest part of a write.
 *
 * Prints one JSON line: tokens, CPU per token, TTFT and ITL as seen here, reads that held more than one event. */
#define _GNU_SOURCE
#include "clock.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct { int port, streams, requests, tokens, prompt, awake; } flag = {18000, 1, 1, 16, 16, 0};

enum where { HEAD, SIZE, DATA, TAIL }; /* TAIL: the CRLF after a chunk */

struct stream {
  int fd, events;
  enum where at;
  size_t left;  /* bytes to go of the chunk, or of its CRLF */
  unsigned matched; /* bytes of the header's end seen so far */
  int64_t sent, first, previous;
};

static char *request;
static size_t request_len;
static int started, finished, failed;
static uint64_t tokens, reads, coalesced;
static struct hist ttft, itl, tpot;

static void send_request(struct stream *s) {
  s->at = HEAD, s->matched = 0, s->events = 0;
  started++;
  s->sent = now_ns();
  if (send(s->fd, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len) failed++;
}

static void on_event(struct stream *s, int64_t now) {
  if (s->events == flag.tokens) return; /* usage and [DONE] follow the tokens */
  if (s->events++ == 0) s->first = now, hist_add(&ttft, now - s->sent);
  else hist_add(&itl, now - s->previous);
  s->previous = now;
  tokens++;
}

static void on_end(struct stream *s) {
  finished++;
  if (s->events != flag.tokens) failed++;
  if (s->events > 1) hist_add(&tpot, (s->previous - s->first) / (s->events - 1));
  if (started < flag.requests) send_request(s);
}

static int hex(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

static void walk(struct stream *s, const char *p, const char *end, int64_t now) {
  while (p < end) {
    switch (s->at) {
      case HEAD:
        s->matched = *p == "\r\n\r\n"[s->matched] ? s->matched + 1 : *p == '\r';
        p++;
        if (s->matched == 4) s->at = SIZE, s->left = 0;
        break;
      case SIZE:
        if (*p == '\n') s->at = s->left ? DATA : TAIL, s->matched = s->left == 0, s->left = s->left ? s->left : 2;
        else if (*p != '\r') s->left = 16 * s->left + (size_t)hex(*p);
        p++;
        break;
      case DATA: {
        size_t take = (size_t)(end - p) < s->left ? (size_t)(end - p) : s->left;
        p += take, s->left -= take;
        if (!s->left) on_event(s, now), s->at = TAIL, s->left = 2, s->matched = 0;
        break;
      }
      case TAIL:
        p++;
        if (--s->left) break;
        if (s->matched) { on_end(s); return; }
        s->at = SIZE;
    }
  }
}

static void on_readable(struct stream *s, int epoll_fd) {
  static char buffer[65536];
  ssize_t got = recv(s->fd, buffer, sizeof buffer, 0);
  int64_t now = now_ns();
  if (got <= 0) {
    failed++, finished++;
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    return;
  }
  int before = s->events;
  reads++;
  walk(s, buffer, buffer + got, now);
  if (s->events > before + 1) coalesced++;
}

static int connect_stream(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)flag.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(fd, (struct sockaddr *)&to, sizeof to)) { perror("connect"); exit(1); }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  return fd;
}

static void build_request(void) {
  char *body = malloc(256 + 8 * (size_t)flag.prompt);
  int len = sprintf(body, "{\"model\":\"mock\",\"max_tokens\":%d,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"prompt\":[1000", flag.tokens);
  for (int i = 1; i < flag.prompt; i++) len += sprintf(body + len, ",%d", 1000 + i % 8999);
  len += sprintf(body + len, "]}");
  request = malloc((size_t)len + 256);
  request_len = (size_t)sprintf(request, "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", flag.port, len, body);
  free(body);
}

static void report(double wall_s) {
  char text[2048];
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
  int len = sprintf(text, "{\"requests\": %d, \"failed\": %d, \"tokens\": %llu, \"wall_s\": %.3f, \"cpu_s\": %.4f, \"cpu_us_per_token\": %.3f, "
                          "\"reads\": %llu, \"coalesced_reads\": %llu, ",
                    finished, failed, (unsigned long long)tokens, wall_s, cpu, cpu / (double)(tokens ? tokens : 1) * 1e6,
                    (unsigned long long)reads, (unsigned long long)coalesced);
  len += hist_json(&ttft, "ttft_ms", text + len, sizeof text - (size_t)len);
  len += sprintf(text + len, ", ");
  len += hist_json(&itl, "itl_ms", text + len, sizeof text - (size_t)len);
  len += sprintf(text + len, ", ");
  hist_json(&tpot, "tpot_ms", text + len, sizeof text - (size_t)len);
  printf("%s}\n", text);
}

int main(int argc, char **argv) {
  struct { const char *name; int *value; } flags[] = {{"--port", &flag.port}, {"--streams", &flag.streams}, {"--requests", &flag.requests},
                                                      {"--tokens", &flag.tokens}, {"--prompt-tokens", &flag.prompt}, {"--awake", &flag.awake}};
  for (int i = 1; i + 1 < argc; i += 2)
    for (int j = 0; j < 6; j++)
      if (!strcmp(argv[i], flags[j].name)) *flags[j].value = atoi(argv[i + 1]);
  setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 65536, .rlim_max = 65536});
  build_request();
  int epoll_fd = epoll_create1(0);
  struct stream *streams = calloc((size_t)flag.streams, sizeof *streams);
  for (int i = 0; i < flag.streams; i++) {
    streams[i].fd = connect_stream();
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, streams[i].fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &streams[i]});
  }
  int64_t began = now_ns();
  for (int i = 0; i < flag.streams && started < flag.requests; i++) send_request(&streams[i]);
  struct epoll_event ready[512];
  while (finished < flag.requests) {
    int n = epoll_wait(epoll_fd, ready, 512, flag.awake ? 0 : 30000);
    if (n == 0 && !flag.awake) { fprintf(stderr, "epoll_client: nothing for 30 s\n"); return 1; }
    for (int i = 0; i < n; i++) on_readable(ready[i].data.ptr, epoll_fd);
  }
  report((double)(now_ns() - began) / 1e9);
  return failed != 0;
}
