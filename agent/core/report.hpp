#pragma once

#include <string>
#include <string_view>

#include "rendezvous/protocol/messages.hpp"

namespace ddprun::agent {

/// What a worker wrote about its own end: the message of torchrun's error file (`content` is its
/// JSON). Empty if there is none or it cannot be read.
[[nodiscard]] std::string error_file_message(std::string_view content);

/// The report of a closed run, for a terminal: whole lines, at most 90 columns wide. A failure is
/// told with its first cause, where to look and its last words; a success only if something
/// happened on the way, otherwise the result is empty. `program` is what the user called it.
[[nodiscard]] std::string format_verdict(const rdzv::Verdict& verdict, const std::string& program);

}  // namespace ddprun::agent
