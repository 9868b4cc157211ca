#include "agent/output/added_returns.hpp"

namespace ddprun::agent {

void AddedReturns::remove(std::string_view shown, std::string& out) {
    for (const char byte : shown) {
        if (is_held_ && byte != '\n') {
            out += '\r';
        }
        is_held_ = byte == '\r';
        if (!is_held_) {
            out += byte;
        }
    }
}

void AddedReturns::finish(std::string& out) {
    if (is_held_) {
        out += '\r';
        is_held_ = false;
    }
}

}  // namespace ddprun::agent
