/* What a fork does here. */
#ifndef FORKS_H
#define FORKS_H

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* 0: madvise says that it will wipe a page in children and does not, as emulators
 * have it.  A child then takes itself for the die. */
static inline int forks_wipe(void)
{
    uint32_t *page = (uint32_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    pid_t child;

    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0)
        return 1;
    *page = 1;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(*page == 0);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    munmap(page, 4096);
    return WEXITSTATUS(status);
}

#endif
