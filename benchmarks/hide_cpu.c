/* Hides instructions of an x86 CPU from a program on Linux: HIDE_CPU=vnni or avx512, LD_PRELOAD=this library.
 *
 * The kernel lets the instruction CPUID fault, and the handler answers it without the bits of these instructions.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define CPUID_SET 0x1012 /* of arch_prctl */

static int avx512;

static long allow(long on) { return syscall(SYS_arch_prctl, CPUID_SET, on); }

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *now = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)now[REG_RIP];
    if (at[0] != 0x0f || at[1] != 0xa2) { /* another fault */
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    unsigned leaf = now[REG_RAX], part = now[REG_RCX], a, b, c, d;
    allow(1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
    allow(0);
    if (leaf == 7 && part == 0) {
        c &= ~(1u << 11); /* AVX512_VNNI */
        d &= ~(7u << 22); /* AMX */
        if (avx512) b &= ~((1u << 16) | (1u << 17) | (1u << 21) | (7u << 26) | (3u << 30));
    }
    if (leaf == 7 && part == 1) {
        a &= ~(1u << 4); /* AVX_VNNI */
        d &= ~((1u << 4) | (1u << 10)); /* AVX_VNNI_INT8, AVX_VNNI_INT16 */
    }
    now[REG_RAX] = a, now[REG_RBX] = b, now[REG_RCX] = c, now[REG_RDX] = d, now[REG_RIP] += 2;
    (void)number, (void)info;
}

__attribute__((constructor)) static void hide(void) {
    const char *what = getenv("HIDE_CPU");
    if (what == NULL || what[0] == 0) return;
    avx512 = strcmp(what, "avx512") == 0;
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    if (allow(0) != 0) {
        perror("HIDE_CPU: the CPU or the kernel cannot let CPUID fault");
        exit(1);
    }
}
