#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "launcher/plan/flags.hpp"
#include "launcher/plan/help.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::array kPrograms = {"ddprun", "ddprun-torchrun", "ddprun-launch"};

/// Code of bash. {0}: flags that take a value, {1}: what completes the values, {2}: all flags.
constexpr std::string_view kBash =
    R"(# bash completion for ddprun. Behind the program all is the program's.
_ddprun() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            {0})
                [ "${{COMP_WORDS[i + 1]}}" != = ] || ((i++))
                ((i++))
                ;;
            -*) ;;
            *) compopt -o default; return ;;
        esac
    done
    if [ "$before" = = ] && [ "$COMP_CWORD" -ge 2 ]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    elif [ "$word" = = ]; then
        word=
    fi
    case $before in
{1}
    esac
    case $word in
        -*) COMPREPLY=($(compgen -W "{2}" -- "$word")) ;;
        *) compopt -o default ;;
    esac
}}
complete -F _ddprun {3}
)";

std::string replaced(std::string_view text, char from, std::string_view to) {
    return fmt::format("{}", fmt::join(split(text, from), to));
}

std::vector<const Flag*> shown_flags() {
    std::vector<const Flag*> shown;
    for (const Flag& flag : all_flags()) {
        if (flag.group != FlagGroup::Hidden) {
            shown.push_back(&flag);
        }
    }
    return shown;
}

/// "--module" and, if it has a letter, "-m".
std::vector<std::string> spellings(const Flag& flag) {
    std::vector<std::string> all = {fmt::format("--{}", flag.name)};
    if (flag.letter != '\0') {
        all.push_back(fmt::format("-{}", flag.letter));
    }
    return all;
}

/// The words that the flag's value may be, with blanks between; empty: there are none. A part in
/// capitals is no word.
std::string words_of(const Flag& flag) {
    std::vector<std::string_view> words = split(flag.placeholder, '|');
    std::erase_if(words, [](std::string_view word) {
        return word.find_first_not_of("abcdefghijklmnopqrstuvwxyz") != std::string_view::npos;
    });
    return fmt::format("{}", fmt::join(words, " "));
}

bool is_path(const Flag& flag) {
    return flag.placeholder == "FILE" || flag.placeholder == "DIR";
}

std::string bash_text() {
    std::vector<std::string> all;
    std::vector<std::string> with_value;
    std::vector<std::string> cases;
    for (const Flag* flag : shown_flags()) {
        const std::vector<std::string> names = spellings(*flag);
        all.insert(all.end(), names.begin(), names.end());
        if (flag->is_switch()) {
            continue;
        }
        with_value.insert(with_value.end(), names.begin(), names.end());
        const std::string words = words_of(*flag);
        std::string action;
        if (!words.empty()) {
            action = fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); ", words);
        } else if (is_path(*flag)) {
            action = "compopt -o default; ";
        }
        cases.push_back(fmt::format("        {}) {}return ;;", fmt::join(names, "|"), action));
    }
    return fmt::format(kBash, fmt::join(with_value, "|"), fmt::join(cases, "\n"),
                       fmt::join(all, " "), fmt::join(kPrograms, " "));
}

std::string zsh_quoted(std::string_view text) {
    std::string quoted = replaced(text, '\'', "'\\''");
    for (const char special : {'[', ']', ':'}) {
        quoted = replaced(quoted, special, fmt::format("\\{}", special));
    }
    return quoted;
}

std::string zsh_text() {
    std::string text =
        fmt::format("#compdef {}\n# Behind the program all is the program's.\n_arguments -S \\\n",
                    fmt::join(kPrograms, " "));
    for (const Flag* flag : shown_flags()) {
        const std::string words = words_of(*flag);
        std::string value;
        if (!words.empty()) {
            value = fmt::format(":{}:({})", flag->name, words);
        } else if (!flag->is_switch()) {
            value = fmt::format(":{}:{}", zsh_quoted(flag->placeholder),
                                is_path(*flag) ? "_files" : " ");
        }
        for (const std::string& name : spellings(*flag)) {
            const std::string_view joint = flag->is_switch() ? "" : name[1] == '-' ? "=" : "+";
            text += fmt::format("    '{}{}[{}]{}' \\\n", name, joint,
                                zsh_quoted(replaced(flag->help, '\n', " ")), value);
        }
    }
    return text + "    '1:program:_files' \\\n    '*:: :_default'\n";
}

/// The first rule that fits a word completes it, so those of values stand before that of flags.
std::string tcsh_text() {
    std::vector<std::string> all;
    std::string rules;
    for (const Flag* flag : shown_flags()) {
        all.emplace_back(flag->name);
        if (flag->is_switch()) {
            continue;
        }
        const std::string words = words_of(*flag);
        const std::string value = !words.empty() ? fmt::format("({})", words)
                                  : is_path(*flag)
                                      ? "f"
                                      : fmt::format("x:{}", replaced(flag->placeholder, '@', ""));
        for (const std::string& name : spellings(*flag)) {
            rules += fmt::format("    'n@{}@{}@' \\\n", name, value);
        }
        rules += fmt::format("    'c@--{}=@{}@' \\\n", flag->name, value);
    }
    std::string text = "# tcsh completion for ddprun.\n";
    for (const std::string_view program : kPrograms) {
        text += fmt::format("complete {} \\\n{}    'c@--@({})@' \\\n    'p@*@f@'\n", program, rules,
                            fmt::join(all, " "));
    }
    return text;
}

std::string fish_quoted(std::string_view text) {
    return fmt::format("'{}'", replaced(replaced(text, '\\', "\\\\"), '\'', "\\'"));
}

std::string fish_text() {
    std::string text = "# fish completion for ddprun.\n";
    for (const std::string_view program : kPrograms) {
        for (const Flag* flag : shown_flags()) {
            const std::string words = words_of(*flag);
            text += fmt::format("complete -c {} -l {}", program, flag->name);
            if (flag->letter != '\0') {
                text += fmt::format(" -s {}", flag->letter);
            }
            if (!words.empty()) {
                text += fmt::format(" -x -a {}", fish_quoted(words));
            } else if (!flag->is_switch()) {
                text += is_path(*flag) ? " -r" : " -x";
            }
            text += fmt::format(" -d {}\n", fish_quoted(replaced(flag->help, '\n', " ")));
        }
    }
    return text;
}

}  // namespace

Result<std::string> completion_text(const Given& shell) {
    constexpr std::array kTexts = {bash_text, zsh_text, tcsh_text, fish_text};
    const Result<std::size_t> index = parse_choice(shell, {"bash", "zsh", "tcsh", "fish"});
    if (!index) {
        return index.error();
    }
    return kTexts.at(*index)();
}

}  // namespace ddprun::launcher
