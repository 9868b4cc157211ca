#include "launcher/ctl/verbs/help.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "launcher/ctl/verbs/verbs.hpp"
#include "launcher/plan/nearest_name.hpp"

namespace ddprun::launcher {

namespace {

/// `text` from column `column` on, the first line behind `line`.
std::string row(std::string line, std::size_t column, const std::string& text) {
    constexpr std::size_t kColumns = 80;
    std::string rows;
    if (line.size() + 2 > column) {
        rows = line + '\n';
        line.clear();
    }
    line.resize(column, ' ');
    for (const std::string& word : CLI::detail::split(text, ' ')) {
        if (line.size() + 1 + word.size() > kColumns) {
            rows += line + '\n';
            line.assign(column, ' ');
        }
        line += (line.size() > column ? " " : "") + word;
    }
    return rows + line + '\n';
}

/// "NODE", "--log-dir DIR", "-f, --follow".
std::string shown(const CLI::Option& option) {
    if (option.get_positional()) {
        return option.get_name(true);
    }
    std::string text = "--" + option.get_lnames().front();
    if (option.get_expected_max() > 0) {
        // A check adds what it allows behind a colon.
        const std::string value = option.get_type_name();
        text += " " + value.substr(0, value.find(':'));
    }
    return option.get_snames().empty() ? text
                                       : fmt::format("-{}, {}", option.get_snames()[0], text);
}

std::string verbs_text(const CLI::App& app) {
    constexpr std::size_t kColumn = 15;
    std::string text =
        "usage: ddpctl VERB [options]\n\n"
        "ddpctl VERB --help has the options of a verb, and examples.\n";
    std::string group;
    for (const CLI::App* verb : app.get_subcommands({})) {
        if (verb->get_group().empty()) {
            continue;
        }
        if (verb->get_group() != group) {
            group = verb->get_group();
            text += fmt::format("\n{}:\n", group);
        }
        text += row("  " + verb->get_name(), kColumn, verb->get_description());
    }
    return text;
}

std::string verb_text(const CLI::App& verb, const std::string& name) {
    constexpr std::size_t kColumn = 26;
    std::string usage = "usage: " + name;
    std::string arguments;
    std::string options;
    for (const CLI::Option* option : verb.get_options()) {
        std::string& rows = option->get_positional() ? arguments : options;
        if (option->get_positional() || option->get_required()) {
            const std::string text = shown(*option);
            usage += option->get_required() ? " " + text : " [" + text + "]";
        }
        if (option != verb.get_help_ptr()) {
            rows += row("  " + shown(*option), kColumn, option->get_description());
        }
    }
    return fmt::format("{} [options]\n\n{}.\n{}\noptions:\n{}{}", usage, verb.get_description(),
                       arguments.empty() ? "" : "\n" + arguments, options,
                       row("  -h, --help", kColumn, "this text"));
}

using Names = std::vector<std::string_view>;

/// " (did you mean --json?)" if `typed` abbreviates some of `names` or misspells one.
std::string meant(std::string_view typed, const Names& names, std::string_view dashes) {
    Names near;
    std::copy_if(names.begin(), names.end(), std::back_inserter(near),
                 [typed](auto name) { return typed.size() > 1 && name.starts_with(typed); });
    if (near.empty()) {
        near = {nearest_name(typed, names)};
    }
    return near.front().empty() ? ""
                                : fmt::format(" (did you mean {}{}?)", dashes,
                                              fmt::join(near, fmt::format(" or {}", dashes)));
}

std::vector<const CLI::App*> listed_verbs(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

std::string no_verb(const CLI::App& app, const std::string& typed) {
    const std::vector<const CLI::App*> verbs = listed_verbs(app);
    Names names;
    for (const CLI::App* verb : verbs) {
        names.push_back(verb->get_name());
    }
    return fmt::format("there is no verb {}{}; see ddpctl --help", typed, meant(typed, names, ""));
}

int show_help(const CLI::App& app, const std::string& wanted) {
    if (wanted.empty()) {
        fmt::print("{}",
                   app.get_formatter()->make_help(&app, "ddpctl", CLI::AppFormatMode::Normal));
        return kExitSuccess;
    }
    for (const CLI::App* verb : app.get_subcommands({})) {
        if (verb->get_name() == wanted) {
            fmt::print("{}", verb->help("ddpctl"));
            return kExitSuccess;
        }
    }
    return complain({ErrorCode::InvalidArgument, no_verb(app, wanted)});
}

/// `flag`: "--follow=1", "-f".
std::string explain_flag(const std::vector<const CLI::App*>& verbs, const CLI::App& verb,
                         std::string flag) {
    flag = flag.substr(0, flag.starts_with("--") ? flag.find('=') : 2);
    Names owners;
    for (const CLI::App* other : verbs) {
        if (other->get_option_no_throw(flag) != nullptr) {
            owners.push_back(other->get_name());
        }
    }
    if (!owners.empty()) {
        return fmt::format("{} has no {}: it is a flag of {}", verb.get_name(), flag,
                           fmt::join(owners, ", "));
    }
    Names names;
    for (const CLI::Option* option : verb.get_options()) {
        if (!option->get_positional()) {
            names.push_back(option->get_lnames().front());
        }
    }
    std::string typed = flag;
    typed.erase(0, typed.find_first_not_of('-'));
    std::replace(typed.begin(), typed.end(), '_', '-');
    return fmt::format("{} has no {}{}", verb.get_name(), flag, meant(typed, names, "--"));
}

}  // namespace

std::string Help::make_help(const CLI::App* app, std::string name,
                            CLI::AppFormatMode /*mode*/) const {
    const bool is_verb = app->get_parent() != nullptr;
    return (is_verb ? verb_text(*app, name) : verbs_text(*app)) + app->get_footer();
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
    std::vector<std::string> unknown = app.remaining(true);
    std::erase(unknown, "--");
    const std::string typed = unknown.empty() ? "" : unknown.front();
    const bool is_flag = typed.starts_with("-");
    if (app.get_subcommands().empty()) {
        return typed.empty() || is_flag ? "a verb comes first; see ddpctl --help"
                                        : no_verb(app, typed);
    }
    const CLI::App& verb = *app.get_subcommands().front();
    std::string what = error.what();
    if (is_flag && !app.remaining().empty()) {
        what = fmt::format("{} comes before its verb; write ddpctl {} {}", typed, verb.get_name(),
                           typed);
    } else if (is_flag) {
        what = explain_flag(listed_verbs(app), verb, typed);
    } else if (!typed.empty()) {
        what = fmt::format("{}: unexpected argument {}", verb.get_name(), typed);
    }
    return fmt::format("{}; see ddpctl {} --help", what, verb.get_name());
}

Action declare_help(CLI::App& verb) {
    const auto wanted = std::make_shared<std::string>();
    verb.add_option("VERB", *wanted, "its options and examples; default: the list of verbs");
    verb.footer(R"(
example:
  ddpctl help status
)");
    return [app = verb.get_parent(), wanted] { return show_help(*app, *wanted); };
}

}  // namespace ddprun::launcher
