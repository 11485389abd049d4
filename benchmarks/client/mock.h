/* What the two halves of the mock server share: mock_stream.c knows tokens and when they are due, mock_server.c knows
 * sockets and requests. */
#pragma once
#define _GNU_SOURCE
#include "clock.h"
#include <stdbool.h>
#include <stddef.h>

enum outcome { OPEN, DONE, ERROR, CUT, ABORTED };

struct flags {
  int port, slots, error_every, cut_every, default_tokens;
  int64_t ttft, itl, spread; /* ns */
  const char *model, *text, *stats_file, *log_file;
};

struct record { /* one request: a line of --log; ns */
  int64_t arrival, first, last;
  int prompt, asked, sent;
  enum outcome outcome;
};

struct conn {
  int fd, heap_at; /* heap_at: index in the heap of first tokens, -1 when not in it */
  char *in, *out;
  size_t in_len, in_cap, out_off, out_len, out_cap;
  bool busy, chat, stream, usage, continuous, token_ids, dead;
  int prompt, asked, sent, cut_at; /* tokens */
  int64_t due, previous;           /* ns: of the next token, of the one before */
  uint32_t record;
  struct line *line; /* that it stands in, NULL when in none */
  struct conn *next, *before;
  int event_at, event_len, id_at, total_at; /* offsets within event */
  char event[1024], model[128];
};

struct line { /* first in, first out */
  struct conn *head, *tail;
};

struct totals {
  uint64_t streams, tokens, blocked_writes;
  uint32_t finished[5]; /* by outcome */
  int active, active_max;
  int64_t last_event;
  struct hist lateness, ttft, gap, tpot;
};

extern struct flags flag;
extern struct record *records;
extern struct totals totals;
extern int epoll_fd;

/* mock_stream.c */
struct conn *next_due(void); /* whose token is due first, NULL when none is */
void begin(struct conn *c, int64_t now); /* a stream, at once or when a slot is free */
void end_stream(struct conn *c, enum outcome outcome, int64_t now);
void send_token(struct conn *c, int64_t now); /* now: this instant */
void respond(struct conn *c, const char *status, const char *type, const char *body);
void send_bytes(struct conn *c, const char *bytes, size_t len);
void flush_out(struct conn *c);

/* mock_server.c */
void parse_input(struct conn *c, int64_t now);
