// old_kernel PROGRAM ARGUMENT...: runs the program as if the kernel were Linux 4.18.

#include "tests/support/old_kernel.hpp"

#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
    if (argc < 2) {
        return 2;
    }
    if (!ddprun::test::make_kernel_old()) {
        return ddprun::test::kNoFilter;
    }
    ::execv(argv[1], argv + 1);
    std::perror(argv[1]);
    return 127;
}
