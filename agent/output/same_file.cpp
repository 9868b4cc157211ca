#include "agent/output/same_file.hpp"

#include <sys/stat.h>

namespace ddprun::agent {

bool is_same_file(int one, int other) {
    struct stat first {};
    struct stat second {};
    return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace ddprun::agent
