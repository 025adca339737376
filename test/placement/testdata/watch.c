/* The programs of the placement benchmark, small enough to be started 1,000 times a second.
 *
 *   watch NEEDLE LIFE         ends when a line of its own /proc/self/cgroup ends with NEEDLE, or after LIFE microseconds,
 *                             and writes how many microseconds that took, from main on; -1: it never did.
 *   watch                     ends at once: a stranger.
 *   watch PROGRAM RATE COUNT NEEDLE LIFE
 *                             starts PROGRAM COUNT times, RATE times a second; without NEEDLE as a stranger.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

static int watch(const char *needle, int64_t life) {
	int64_t from = now();
	int32_t took = -1;
	char buf[4096], line[512];
	int fd = open("/proc/self/cgroup", O_RDONLY);
	size_t n = strlen(needle);
	memcpy(line, needle, n);
	line[n++] = '\n';
	for (;;) {
		ssize_t got = pread(fd, buf, sizeof buf, 0);
		int64_t at = now() - from;
		if (got > 0 && memmem(buf, got, line, n)) {
			took = at;
			break;
		}
		if (at > life)
			break;
		/* Many that wait for long would keep the daemon from its work. */
		if (at < 1000)
			sched_yield();
		else
			usleep(100);
	}
	return write(1, &took, sizeof took) != sizeof took;
}

static int start(char **argv, int argc) {
	double rate = atof(argv[2]);
	long count = atol(argv[3]);
	char *child[] = {argv[1], argc > 4 ? argv[4] : NULL, argc > 4 ? argv[5] : NULL, NULL};
	char *env[] = {NULL};
	struct timespec begin;
	signal(SIGCHLD, SIG_IGN);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (long i = 0; i < count; i++) {
		double at = i / rate;
		struct timespec next = {begin.tv_sec + (time_t)at, begin.tv_nsec + (long)((at - (time_t)at) * 1e9)};
		if (next.tv_nsec >= 1000000000) {
			next.tv_sec++;
			next.tv_nsec -= 1000000000;
		}
		pid_t pid;
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL))
			;
		if (posix_spawn(&pid, argv[1], NULL, NULL, child, env))
			return 1;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}

int main(int argc, char **argv) {
	if (argc == 3)
		return watch(argv[1], atoll(argv[2]));
	if (argc > 3)
		return start(argv, argc);
	return 0;
}
