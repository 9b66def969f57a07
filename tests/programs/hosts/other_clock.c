/* Another time of day for a program and all it starts: LD_PRELOAD this, CLOCK_OFFSET_S=-300.
 *
 * What tells the time of day tells it with the offset; deadlines in that time are taken back before
 * they reach the kernel. How fast time goes, and the monotonic clocks, stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A deadline of a monotonic clock is smaller, however long the machine has been running. */
#define FIRST_OF_DAY_TIME 1000000000

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static time_t offset(void) {
    static time_t seconds;
    static int is_known;
    if (!is_known) {
        const char *text = getenv("CLOCK_OFFSET_S");
        seconds = text ? atol(text) : 0;
        is_known = 1;
    }
    return seconds;
}

static int is_of_day(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static const struct timespec *taken_back(const struct timespec *deadline, struct timespec *room) {
    if (!deadline || deadline->tv_sec < FIRST_OF_DAY_TIME) return deadline;
    *room = *deadline;
    room->tv_sec -= offset();
    return room;
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int failed = real(clock, told);
    if (!failed && is_of_day(clock)) told->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    told->tv_sec = now.tv_sec;
    told->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    struct timespec room;
    return REAL(sem_timedwait)(semaphore, taken_back(deadline, &room));
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static __typeof__(&pthread_cond_timedwait) real;
    struct timespec room;
    /* On x86-64 there is an older one of this name, for conditions of another form. */
    if (!real) real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = REAL(pthread_cond_timedwait);
    return real(condition, mutex, taken_back(deadline, &room));
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *deadline) {
    struct timespec room;
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, taken_back(deadline, &room));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
                            const struct timespec *restrict deadline) {
    struct timespec room;
    return REAL(pthread_mutex_timedlock)(mutex, taken_back(deadline, &room));
}

/* Some libraries wait for a futex by themselves. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    struct timespec room;
    if (number == SYS_futex && a[1] & FUTEX_CLOCK_REALTIME)
        a[3] = (long)taken_back((const struct timespec *)a[3], &room);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
