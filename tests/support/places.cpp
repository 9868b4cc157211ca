#include "tests/support/places.hpp"

const std::string& bin_dir() {
    static const std::string dir = DDPRUN_BIN_DIR;
    return dir;
}

const std::string& source_dir() {
    static const std::string dir = DDPRUN_SOURCE_DIR;
    return dir;
}
