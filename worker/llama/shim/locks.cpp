// Locks on ranges of a file that belong to the open file, so that they end with the process whatever becomes of it.
#include "internal.h"

#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#ifdef F_OFD_SETLK
static struct flock range(short type, int64_t start, int64_t len) {
    struct flock lock;
    std::memset(&lock, 0, sizeof(lock)); // l_pid must be 0
    lock.l_type   = type;
    lock.l_whence = SEEK_SET;
    lock.l_start  = start;
    lock.l_len    = len;
    return lock;
}
#endif

extern "C" int ms_range_lock(int fd, int64_t start, int64_t len, int take) noexcept {
#ifdef F_OFD_SETLK
    struct flock lock = range(take ? F_WRLCK : F_UNLCK, start, len);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 1 : 0;
#else
    return 0;
#endif
}

extern "C" int ms_range_locked(int fd, int64_t start, int64_t len, int64_t * found, int64_t * found_len) noexcept {
#ifdef F_OFD_SETLK
    struct flock lock = range(F_WRLCK, start, len);
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) {
        return 0;
    }
    *found     = lock.l_start;
    *found_len = lock.l_len;
    return 1;
#else
    return 0;
#endif
}
