/* Room below a memory cgroup's limit, looked up where no Python may run.
 *
 * The limit of a cgroup kills where the others refuse, so whoever takes pages
 * looks before.  strata/_core/limits.py does the same for error texts and finds
 * the files; the two must agree. */
#ifndef ST_CGROUP_H
#define ST_CGROUP_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The files that tell a group's limit, its use, and its statistics. */
struct st_cgroup {
    const char *limit, *used, *stat;
};

#define ST_CGROUP_UNLIMITED (UINT64_C(1) << 60) /* version 1 says "none" with a number near 2^63 */

/* A file's beginning as a string; 0 if it cannot be read. */
static inline int st_cgroup_read(const char *path, char *text, size_t room)
{
    size_t have = 0;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    while (have < room - 1 && (got = read(fd, text + have, room - 1 - have)) > 0)
        have += (size_t)got;
    close(fd);
    text[have] = 0;
    return got >= 0;
}

/* The number in a file; 0 if there is none ("max" says that there is no limit). */
static inline int st_cgroup_number(const char *path, uint64_t *value)
{
    char text[64], *end;

    if (!st_cgroup_read(path, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return 0;
    *value = strtoull(text, &end, 10);
    return 1;
}

/* Bytes of inactive file pages in a memory.stat, which the kernel can drop; of
 * the group and those below it, where version 1 tells them apart. */
static inline uint64_t st_cgroup_droppable(const char *path)
{
    char text[16384];
    const char *line, *at;

    if (!st_cgroup_read(path, text, sizeof(text)))
        return 0;
    at = strstr(text, "total_inactive_file ");
    if (at)
        return strtoull(at + strlen("total_inactive_file "), NULL, 10);
    for (line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, "inactive_file ", 14) == 0)
            return strtoull(line + 14, NULL, 10);
    return 0;
}

/* Bytes free below the tightest of n groups' limits; UINT64_MAX if none limits anything. */
static inline uint64_t st_cgroup_free(const struct st_cgroup *groups, uint32_t n)
{
    uint64_t tightest = UINT64_MAX, total, used, droppable, left;
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (!st_cgroup_number(groups[i].limit, &total) || total >= ST_CGROUP_UNLIMITED ||
            !st_cgroup_number(groups[i].used, &used))
            continue;
        droppable = st_cgroup_droppable(groups[i].stat);
        used = used > droppable ? used - droppable : 0;
        left = total > used ? total - used : 0;
        tightest = left < tightest ? left : tightest;
    }
    return tightest;
}

#endif
