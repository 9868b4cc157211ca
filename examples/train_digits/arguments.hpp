#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace digits {

struct Arguments {
    int epochs = 10;
    std::int64_t batch_size = 32;
    double lr = 2e-3;
    std::uint64_t seed = 1;
    std::string checkpoint_dir = "checkpoints";
    double min_epoch_seconds = 0;
    std::string data;
};

/// The arguments, or the code to exit with: 0 after --help, 2 after a line on stderr.
struct Parsed {
    Arguments arguments;
    std::optional<int> exit_code;
};
[[nodiscard]] Parsed parse_arguments(int argc, char** argv);

}  // namespace digits
