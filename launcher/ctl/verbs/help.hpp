#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace ddprun::launcher {

/// Help in lines of at most 80 columns. The help of ddpctl lists its verbs by group; a verb without
/// a group is left out. The help of a verb has usage, summary, arguments and options. The footer
/// ends both. packaging/pages.py reads it.
class Help : public CLI::FormatterBase {
public:
    std::string make_help(const CLI::App* app, std::string name,
                          CLI::AppFormatMode mode) const override;
};

/// Why `app` cannot use its command line, in one line that names what was meant. `error` is its.
[[nodiscard]] std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace ddprun::launcher
