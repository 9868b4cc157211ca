#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace ddprun::agent {

/// Appends one line, given without its end, as it is to be shown, with a line end.
using LineWriter = std::function<void(std::string_view line, std::string& out)>;

/// Shows a line behind `prefix`.
[[nodiscard]] LineWriter with_prefix(std::string prefix);

/// Carriage returns in lines.
enum class Returns {
    EndLines,  ///< "\r\n" and a lone "\r" (a progress bar) end a line, too, and become "\n"; an
               ///< empty line that one of them ends is not shown
    Stay,      ///< bytes like others
};

/// Cuts one stream of a worker into whole lines, for a console that several workers share. "\n"
/// ends a line. A line longer than the bound is shown in pieces, each as a line of its own. Any
/// bytes are allowed. Pure.
class LineSplitter {
public:
    LineSplitter(LineWriter write, std::size_t line_bytes_max, Returns returns = Returns::EndLines);

    /// Takes the next bytes of the stream and appends the lines they complete to `out`.
    void feed(std::string_view bytes, std::string& out);

    /// Appends the unfinished line, if any, with a line end.
    void finish(std::string& out);

private:
    void hold(std::string_view text, std::string& out);
    void end_line(std::string_view text, bool is_return, std::string& out);

    LineWriter write_;
    std::size_t line_bytes_max_;
    Returns returns_;
    std::string held_;              ///< the unfinished line, shorter than the bound
    bool ended_by_return_ = false;  ///< the last byte was '\r': a '\n' right after belongs to it
    bool is_cut_ = false;           ///< pieces of the current line are out already
};

}  // namespace ddprun::agent
