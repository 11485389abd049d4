/* How many small writes a second this machine's loopback takes from one core: the ceiling of any server that gives each
 * event a write of its own. One thread on core 0 sends to N connections in turn and does nothing else; one on core 1
 * reads what is there and never sleeps, so that no write has to wake it.
 *
 *   loopback_ceiling CONNECTIONS [BYTES [SECONDS]]     prints one JSON line
 */
#define _GNU_SOURCE
#include "clock.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

static int connections, *readers, *writers;
static atomic_bool stopping;

static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

static void *read_all(void *unused) {
  static char buffer[65536];
  struct epoll_event ready[512];
  int epoll_fd = epoll_create1(0);
  pin(1);
  for (int i = 0; i < connections; i++)
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, readers[i], &(struct epoll_event){.events = EPOLLIN, .data.fd = readers[i]});
  while (!stopping) {
    int n = epoll_wait(epoll_fd, ready, 512, 0);
    for (int i = 0; i < n; i++) recv(ready[i].data.fd, buffer, sizeof buffer, 0);
  }
  return unused;
}

static void connect_all(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) perror("listen"), exit(1);
  getsockname(listener, (struct sockaddr *)&address, &size);
  for (int i = 0; i < connections; i++) {
    readers[i] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(readers[i], (struct sockaddr *)&address, size)) perror("connect"), exit(1);
    writers[i] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    setsockopt(writers[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return fprintf(stderr, "usage: loopback_ceiling CONNECTIONS [BYTES [SECONDS]]\n"), 2;
  connections = atoi(argv[1]);
  size_t bytes = argc > 2 ? (size_t)atoi(argv[2]) : 256;
  double seconds = argc > 3 ? atof(argv[3]) : 3;
  setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 65536, .rlim_max = 65536});
  readers = calloc((size_t)connections, sizeof(int)), writers = calloc((size_t)connections, sizeof(int));
  char *event = calloc(1, bytes);
  pin(0);
  connect_all();
  pthread_t reader;
  pthread_create(&reader, NULL, read_all, NULL);
  uint64_t sent = 0, full = 0;
  int64_t began = now_ns(), now;
  do
    for (int i = 0; i < connections; i++)
      if (send(writers[i], event, bytes, MSG_NOSIGNAL) == (ssize_t)bytes) sent++; else full++;
  while ((now = now_ns()) - began < (int64_t)(seconds * 1e9));
  stopping = true;
  pthread_join(reader, NULL);
  printf("{\"connections\": %d, \"bytes\": %zu, \"sends_per_s\": %.0f, \"full\": %llu}\n", connections, bytes,
         (double)sent / ((double)(now - began) / 1e9), (unsigned long long)full);
  return 0;
}
