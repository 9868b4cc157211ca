#include "base/signal_name.hpp"

#include <cstring>

#include <fmt/format.h>

namespace ddprun {

std::string signal_name(int signal) {
    const char* abbreviation = ::sigabbrev_np(signal);
    if (abbreviation == nullptr) {
        return fmt::format("signal {}", signal);
    }
    return fmt::format("SIG{}", abbreviation);
}

}  // namespace ddprun
