#include "agent/output/line_tail.hpp"

#include <algorithm>

namespace ddprun::agent {

void LineTail::add(std::string_view bytes) {
    if (bytes.size() >= bytes_max_) {
        kept_.assign(bytes.substr(bytes.size() - bytes_max_));
        return;
    }
    // The front is cut off only when the string has doubled: every byte is moved once at most.
    if (kept_.size() + bytes.size() > 2 * bytes_max_) {
        kept_.erase(0, kept_.size() - bytes_max_);
    }
    kept_.append(bytes);
}

std::string_view LineTail::text() const {
    const std::string_view all = kept_;
    return all.substr(all.size() - std::min(all.size(), bytes_max_));
}

}  // namespace ddprun::agent
