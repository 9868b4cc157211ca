#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire/messages.hpp"

/// Reads the last words of a worker, for people. Pure; the bytes may come from anywhere.
namespace ddprun::rdzv {

/// The message that a worker wrote about its own end into torchrun's error file.
struct ErrorFile {
    std::string message;    ///< empty: there is none, or it cannot be read
    std::string traceback;  ///< of the exception that @record saw; empty: not told
};
[[nodiscard]] ErrorFile parse_error_file(std::string_view content);

/// The lines of `bytes` as a terminal would show them in the end: of a line that was drawn again
/// and again (`\r`) its last state, tabs as blanks, no colours. Other control characters stay.
/// No empty lines at the end.
[[nodiscard]] std::vector<std::string> shown_lines(std::string_view bytes);

/// Index in `lines` at which the last Python traceback begins; lines.size(): there is none.
[[nodiscard]] std::size_t begin_of_traceback(const std::vector<std::string>& lines);

/// The one line that says most about why a worker failed.
struct CauseLine {
    std::string text;              ///< empty: it said nothing
    bool is_stdouts_last = false;  ///< which may have nothing to do with the failure
};

/// The message of the worker's error file, else the exception behind its last traceback, else its
/// last line on stderr, else on stdout.
[[nodiscard]] CauseLine cause_line(const Evidence& evidence);

}  // namespace ddprun::rdzv
