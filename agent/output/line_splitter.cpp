#include "agent/output/line_splitter.hpp"

#include <algorithm>
#include <utility>

namespace ddprun::agent {

LineWriter with_prefix(std::string prefix) {
    return [prefix = std::move(prefix)](std::string_view line, std::string& out) {
        out.append(prefix).append(line).push_back('\n');
    };
}

LineSplitter::LineSplitter(LineWriter write, std::size_t line_bytes_max, Returns returns)
    : write_(std::move(write)),
      line_bytes_max_(std::max<std::size_t>(line_bytes_max, 1)),
      returns_(returns) {}

void LineSplitter::feed(std::string_view bytes, std::string& out) {
    // Most output has no '\r' at all, so its next place is looked up once, not for every line.
    std::size_t next_return =
        returns_ == Returns::EndLines ? bytes.find('\r') : std::string_view::npos;
    std::size_t at = 0;
    while (at < bytes.size()) {
        if (ended_by_return_) {
            ended_by_return_ = false;
            if (bytes[at] == '\n') {
                ++at;
                continue;
            }
        }
        if (next_return != std::string_view::npos && next_return < at) {
            next_return = bytes.find('\r', at);
        }
        const std::size_t end = std::min(bytes.find('\n', at), next_return);
        if (end == std::string_view::npos) {
            hold(bytes.substr(at), out);
            return;
        }
        const bool is_return = bytes[end] == '\r';
        end_line(bytes.substr(at, end - at), is_return, out);
        ended_by_return_ = is_return;
        at = end + 1;
    }
}

void LineSplitter::finish(std::string& out) {
    if (!held_.empty()) {
        write_(held_, out);
        held_.clear();
    }
    held_.shrink_to_fit();
    is_cut_ = false;
}

void LineSplitter::hold(std::string_view text, std::string& out) {
    while (held_.size() + text.size() >= line_bytes_max_) {
        const std::size_t count = line_bytes_max_ - held_.size();
        held_.append(text.substr(0, count));
        write_(held_, out);
        held_.clear();
        is_cut_ = true;
        text.remove_prefix(count);
    }
    held_.append(text);
}

void LineSplitter::end_line(std::string_view text, bool is_return, std::string& out) {
    if (held_.size() + text.size() > line_bytes_max_) {
        hold(text, out);
        text = {};
    }
    // The rest of a line whose pieces are out, or the "\r" that a progress bar starts with.
    const bool is_nothing = held_.empty() && text.empty() && (is_cut_ || is_return);
    if (!is_nothing && held_.empty()) {
        write_(text, out);
    } else if (!is_nothing) {
        held_.append(text);
        write_(held_, out);
    }
    held_.clear();
    is_cut_ = false;
}

}  // namespace ddprun::agent
