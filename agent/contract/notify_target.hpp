#pragma once

#include <string>
#include <variant>

#include "base/result.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::agent {

/// The shell's; finds a notice on its standard input.
struct NotifyCommand {
    std::string command;

    bool operator==(const NotifyCommand&) const = default;
};

/// Notices are posted to it. Its path may hold a token: it is for no message and no log.
struct NotifyUrl {
    bool is_tls = false;
    rdzv::Endpoint server;
    std::string authority;  ///< as the URL has it: HOST or HOST:PORT
    std::string path;       ///< and query; begins with '/'

    bool operator==(const NotifyUrl&) const = default;
};

/// The target that --notify names.
using NotifyTarget = std::variant<NotifyCommand, NotifyUrl>;

/// "http://" or "https://" begins a URL, anything else is a command. A failure repeats neither.
[[nodiscard]] Result<NotifyTarget> read_notify_target(const std::string& text);

/// For people, without what may be secret: "https://HOST", "the command".
[[nodiscard]] std::string name_of(const NotifyTarget& target);

}  // namespace ddprun::agent
