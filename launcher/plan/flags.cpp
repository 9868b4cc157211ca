#include "launcher/plan/flags.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/printable.hpp"
#include "launcher/plan/nearest_name.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

/// CLI11 takes the next argument as the value of "--flag="; with this in its place it does not,
/// so that an empty shell variable never swallows the program.
constexpr char kEmptyValue[] = "\x01";

std::string with_underscores(std::string_view name) {
    std::string text{name};
    std::replace(text.begin(), text.end(), '-', '_');
    return text;
}

std::string environment_name(const Flag& flag) {
    std::string name = "PET_" + with_underscores(flag.name);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return name;
}

std::string cli11_names(const Flag& flag) {
    std::string names = fmt::format("--{}", flag.name);
    if (flag.name.find('-') != std::string_view::npos) {
        names += ",--" + with_underscores(flag.name);
    }
    if (flag.letter != '\0') {
        names += fmt::format(",-{}", flag.letter);
    }
    return names;
}

Error usage(std::string line) {
    return Error{ErrorCode::InvalidArgument, std::move(line)};
}

/// "--nproc_per_node=8" -> "--nproc_per_node".
std::string_view flag_part(std::string_view argument) {
    return argument.substr(0, argument.find('='));
}

/// The flag that `argument` names exactly, without a value; null if there is none.
const Flag* find_flag(std::string_view argument) {
    for (const Flag& flag : all_flags()) {
        if (argument.size() == 2 && argument[0] == '-' && flag.letter != '\0' &&
            argument[1] == flag.letter) {
            return &flag;
        }
    }
    return argument.find('=') == std::string_view::npos ? long_flag(argument) : nullptr;
}

Error missing_value(std::string_view typed, std::string_view instead) {
    const Flag* flag = find_flag(typed);
    const std::string example =
        flag == nullptr ? std::string{} : fmt::format("; write {} {}", typed, flag->placeholder);
    return usage(fmt::format("{} needs a value, but {}{}", typed, instead, example));
}

bool looks_like_a_flag(std::string_view value) {
    return value.starts_with("--") || find_flag(value) != nullptr;
}

Result<bool> parse_switch(const Given& given) {
    std::string word = given.value;
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (word == "true" || word == "yes" || word == "on" || word == "1") {
        return true;
    }
    if (word == "false" || word == "no" || word == "off" || word == "0") {
        return false;
    }
    return usage(fmt::format("{}={}: the flag is on or off; write {} alone, or {}=0 for off",
                             given.source, given.value, given.source, given.source));
}

/// torchrun reads the variable of a switch as a whole number.
Result<bool> parse_environment_switch(const Given& given) {
    std::string_view digits = given.value;
    if (!digits.empty() && (digits.front() == '-' || digits.front() == '+')) {
        digits.remove_prefix(1);
    }
    const bool is_number =
        !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number) {
        return usage(fmt::format("{}: must be a whole number; write {}=1 for on or {}=0 for off",
                                 given.shown(), given.source, given.source));
    }
    return digits.find_first_not_of('0') != std::string_view::npos;
}

/// The flags that `arguments` could name. CLI11 gets no others: it compares each with all before
/// it, which takes longer than all the rest of reading a command line.
std::set<const Flag*> named_by(const std::vector<std::string>& arguments) {
    std::set<const Flag*> named;
    for (const Flag& flag : all_flags()) {
        if (flag.letter != '\0') {
            named.insert(&flag);  // "-mr" names two.
        }
    }
    for (const std::string& argument : arguments) {
        if (const Flag* flag = find_flag(flag_part(argument))) {
            named.insert(flag);
        }
    }
    return named;
}

/// The result of CLI11, before ddprun's own checks.
struct Cut {
    std::map<const Flag*, std::string> found;  ///< the last value of each flag on the line
    std::vector<std::string> unknown;          ///< what it did not know, in order
};

Result<Cut> cut_with_cli11(const std::vector<std::string>& arguments) {
    CLI::App app;
    app.set_help_flag();
    app.prefix_command();
    std::vector<std::pair<const Flag*, CLI::Option*>> options;
    for (const Flag* flag : named_by(arguments)) {
        CLI::Option* option = flag->is_switch() ? app.add_flag(cli11_names(*flag))
                                                : app.add_option(cli11_names(*flag));
        options.emplace_back(flag, option->take_last());
    }
    std::vector<std::string> reversed;
    for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) {
        const bool is_empty_value = argument->starts_with("--") && argument->ends_with('=');
        reversed.push_back(is_empty_value ? *argument + kEmptyValue : *argument);
    }
    try {
        app.parse(reversed);
    } catch (const CLI::ArgumentMismatch&) {
        // The one thing CLI11 itself can find wrong here: the line ended where a value was due.
        return missing_value(arguments.back(), "the line ends there");
    } catch (const CLI::Error& error) {
        return usage(fmt::format("cannot read the command line: {}", error.what()));
    }
    Cut cut;
    for (const auto& [flag, option] : options) {
        if (option->count() > 0) {
            const std::string& last = option->results().back();
            cut.found[flag] = last == kEmptyValue ? std::string{} : last;
        }
    }
    cut.unknown = app.remaining();
    return cut;
}

/// The flag that other launchers call so; null: none.
const Flag* flag_elsewhere(std::string_view typed) {
    for (const Flag& flag : all_flags()) {
        const std::vector<std::string_view> names = split(flag.elsewhere, ' ');
        if (!typed.empty() && std::find(names.begin(), names.end(), typed) != names.end()) {
            return &flag;
        }
    }
    return nullptr;
}

}  // namespace

const Flag* long_flag(std::string_view argument) {
    const std::string_view name = flag_part(argument);
    if (!name.starts_with("--")) {
        return nullptr;
    }
    for (const Flag& flag : all_flags()) {
        if (name.size() == 2 + flag.name.size() &&
            (name.substr(2) == flag.name || name.substr(2) == with_underscores(flag.name))) {
            return &flag;
        }
    }
    return nullptr;
}

std::string Given::shown() const {
    const std::string text = value.empty() ? "''" : printable(value, std::string::npos);
    const bool is_flag = source.starts_with("-") && source.find(' ') == std::string::npos;
    return source + (is_flag ? " " : "=") + text;
}

std::optional<Given> CommandLine::value(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? std::nullopt : std::optional<Given>{found->second};
}

bool CommandLine::is_on(std::string_view name) const {
    const auto found = switches_.find(name);
    return found != switches_.end() && found->second;
}

std::optional<Given> CommandLine::asked(const Flag& flag) const {
    if (!flag.is_switch()) {
        return value(flag.name);
    }
    return is_on(flag.name) ? std::optional<Given>({fmt::format("--{}", flag.name), ""})
                            : std::nullopt;
}

void CommandLine::set_default(std::string_view name, Given given) {
    values_.try_emplace(std::string{name}, std::move(given));
}

namespace {

/// Says that a flag does not exist, and names the nearest one, if there is one.
std::string describe_unknown_flag(std::string_view typed) {
    std::string name{flag_part(typed)};
    std::string plain = name;
    plain.erase(0, plain.find_first_not_of('-'));
    std::replace(plain.begin(), plain.end(), '_', '-');
    if (const Flag* ours = flag_elsewhere(plain)) {
        return fmt::format("unknown flag {}; did you mean --{}?", name, ours->name);
    }
    std::vector<std::string_view> names;
    std::vector<std::string> longer;
    for (const Flag& flag : all_flags()) {
        names.push_back(flag.name);
        if (plain.size() >= 2 && flag.name.starts_with(plain) && flag.group != FlagGroup::Hidden) {
            longer.push_back(fmt::format("--{}", flag.name));
        }
    }
    if (const std::string_view nearest = nearest_name(plain, names); !nearest.empty()) {
        return fmt::format("unknown flag {}; did you mean --{}?", name, nearest);
    }
    if (!longer.empty()) {
        return fmt::format("unknown flag {}; flags are not abbreviated: write {}", name,
                           fmt::join(longer, " or "));
    }
    return fmt::format(
        "unknown flag {}; flags of your program come after its name, those of ddprun are in "
        "ddprun --help-all",
        name);
}

/// Reads a flag's value from the environment; an empty value: it has none.
Given given_by_environment(const Flag& flag, const Surroundings& surroundings) {
    std::string name;
    std::string value;
    if (flag.reads_environment) {
        name = environment_name(flag);
        value = surroundings.variable(name).value_or("");
    }
    if (value.empty() && !flag.variable.empty()) {
        name = flag.variable;
        value = surroundings.variable(name).value_or("");
    }
    return {name, value};
}

}  // namespace

Result<CommandLine> read_command_line(const std::vector<std::string>& arguments,
                                      const Surroundings& surroundings) {
    const Result<Cut> cut = cut_with_cli11(arguments);
    if (!cut) {
        return cut.error();
    }
    CommandLine line;
    for (const Flag& flag : all_flags()) {
        const Given given = given_by_environment(flag, surroundings);
        if (given.value.empty()) {
            continue;
        }
        if (!flag.is_switch()) {
            line.values_[std::string{flag.name}] = given;
            continue;
        }
        if (cut->found.contains(&flag)) {
            continue;
        }
        const Result<bool> is_on = parse_environment_switch(given);
        if (!is_on) {
            return is_on.error();
        }
        line.switches_[std::string{flag.name}] = *is_on;
    }
    for (const auto& [flag, text] : cut->found) {
        Given given{fmt::format("--{}", flag->name), text};
        if (!flag->is_switch()) {
            if (looks_like_a_flag(text)) {
                return missing_value(given.source, fmt::format("the flag {} follows", text));
            }
            line.values_[std::string{flag->name}] = std::move(given);
            continue;
        }
        const Result<bool> is_on = parse_switch(given);
        if (!is_on) {
            return is_on.error();
        }
        line.switches_[std::string{flag->name}] = *is_on;
    }
    // --help and --help-all answer even beside mistakes; so does argparse.
    const auto& rest = cut->unknown;
    const bool has_program_mark = !rest.empty() && rest.front() == "--";
    if (!rest.empty() && !has_program_mark && rest.front().starts_with("-") &&
        rest.front().size() > 1 && !line.is_on("help") && !line.is_on("help-all")) {
        return usage(describe_unknown_flag(rest.front()));
    }
    // Taken from `arguments`, not from CLI11: it has seen a changed copy.
    const std::size_t words = rest.size() - (has_program_mark ? 1 : 0);
    line.program_.assign(arguments.end() - static_cast<std::ptrdiff_t>(words), arguments.end());
    return line;
}

}  // namespace ddprun::launcher
