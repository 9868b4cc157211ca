#include "launcher/plan/script_flags.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "launcher/plan/flags.hpp"

namespace ddprun::launcher {

namespace {

/// After a program, no user would take them for ddprun's.
constexpr std::array<std::string_view, 28> kCommonWords = {
    "containment", "dry-run",     "fold",          "grow",
    "help",        "help-all",    "insecure",      "local-addr",
    "log-dir",     "log-format",  "log-file-size", "log-files-kept",
    "module",      "node-id",     "prefix",        "role",
    "run-path",    "secret-file", "start-method",  "store",
    "tls-ca",      "tls-cert",    "tls-key",       "topology",
    "use-env",     "version",     "watch",         "operator-secret-file"};

/// Whether `text` has `flag`, and not only as the beginning of a longer one.
bool has_flag(std::string_view text, std::string_view flag) {
    constexpr std::string_view kWord =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    for (std::size_t at = text.find(flag); at != std::string_view::npos;
         at = text.find(flag, at + 1)) {
        const std::string_view rest = text.substr(at + flag.size());
        if (rest.empty() || kWord.find(rest.front()) == std::string_view::npos) {
            return true;
        }
    }
    return false;
}

/// Empty for what is no script, and for one that cannot be read.
std::string text_of(ProgramMode mode, const std::string& program,
                    const Surroundings& surroundings) {
    const bool is_script =
        mode == ProgramMode::RunPath || (mode == ProgramMode::Guess && program.ends_with(".py"));
    return is_script ? surroundings.read_text(program).value_or("") : std::string{};
}

/// The spellings that are flags of ddprun, each once.
std::vector<std::string> flags_among(const std::vector<std::string>& words) {
    std::vector<std::string> found;
    for (auto word = words.begin() + 1; word != words.end() && *word != "--"; ++word) {
        const Flag* flag = long_flag(*word);
        if (flag == nullptr ||
            std::find(kCommonWords.begin(), kCommonWords.end(), flag->name) != kCommonWords.end()) {
            continue;
        }
        const std::string spelling = word->substr(0, word->find('='));
        if (std::find(found.begin(), found.end(), spelling) == found.end()) {
            found.push_back(spelling);
        }
    }
    return found;
}

}  // namespace

std::string local_rank_argument(ProgramMode mode, const std::string& program,
                                const Surroundings& surroundings) {
    const std::string text = text_of(mode, program, surroundings);
    const bool is_old = has_flag(text, "--local_rank") && !has_flag(text, "--local-rank");
    return is_old ? "--local_rank=${local_rank}" : "--local-rank=${local_rank}";
}

std::string misplaced_flags(ProgramMode mode, const std::vector<std::string>& words,
                            const Surroundings& surroundings) {
    std::vector<std::string> flags = flags_among(words);
    if (flags.empty()) {
        return {};
    }
    const std::string text = text_of(mode, words.front(), surroundings);
    std::erase_if(flags, [&text](const std::string& flag) {
        const auto spelling = [&flag](char from, char to) {
            std::string other = flag;
            std::replace(other.begin() + 2, other.end(), from, to);
            return other;
        };
        return has_flag(text, spelling('-', '_')) || has_flag(text, spelling('_', '-'));
    });
    if (flags.empty()) {
        return {};
    }
    // True, too, where a module that the script imports has that flag.
    return fmt::format("{} behind {} {} to that program; if ddprun is to have {}, put {} before {}",
                       fmt::join(flags, ", "), words.front(), flags.size() == 1 ? "goes" : "go",
                       flags.size() == 1 ? "it" : "them", flags.size() == 1 ? "it" : "them",
                       words.front());
}

}  // namespace ddprun::launcher
