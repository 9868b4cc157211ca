#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/plan/make_plan.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::launcher::test {

/// A machine that exists only here, and remembers what was asked of it.
class FakeSurroundings final : public Surroundings {
public:
    std::map<std::string, std::string> variables{{"PATH", "/opt/bin:/usr/bin"}};
    std::set<std::string> executables{"/usr/bin/python3", "/usr/bin/true"};
    std::set<std::string> files{"train.py"};
    std::set<std::string> folders{"/tmp"};
    std::set<std::string> shared;  ///< is_shared()
    std::vector<int> cpus{0, 1, 2, 3, 4, 5};
    std::optional<std::vector<Gpu>> gpus;
    Topology machine;
    std::map<std::string, std::string> texts;                    ///< files with content, by path
    std::string own_name{"here"};                                ///< host_name()
    bool has_terminal = false;                                   ///< is_at_terminal()
    std::string own_place;                                       ///< own_folder()
    std::string started_place;                                   ///< started_folder()
    std::set<std::pair<std::string, std::string>> same_folders;  ///< besides equal names
    mutable int gpu_questions = 0;
    mutable int topology_questions = 0;

    std::optional<std::string> variable(const std::string& name) const override {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional<std::string>{found->second};
    }
    bool exists(const std::string& path) const override {
        return files.contains(path) || executables.contains(path) || folders.contains(path);
    }
    bool is_directory(const std::string& path) const override { return folders.contains(path); }
    bool is_executable_file(const std::string& path) const override {
        return executables.contains(path);
    }
    std::string working_directory() const override { return "/home/user"; }
    std::string own_folder() const override { return own_place; }
    std::string started_folder() const override { return started_place; }
    bool is_shared(const std::string& folder) const override { return shared.contains(folder); }
    bool is_same_folder(const std::string& a, const std::string& b) const override {
        return a == b || same_folders.contains({a, b}) || same_folders.contains({b, a});
    }
    unsigned user_id() const override { return 1000; }
    bool is_at_terminal() const override { return has_terminal; }
    std::vector<std::string> names_in(const std::string& folder) const override {
        std::set<std::string> names;
        for (const auto& [path, text] : texts) {
            if (path.starts_with(folder + "/")) {
                const std::string below = path.substr(folder.size() + 1);
                names.insert(below.substr(0, below.find('/')));
            }
        }
        return {names.begin(), names.end()};
    }
    std::optional<std::string> read_file(const std::string& path) const override {
        const auto found = texts.find(path);
        return found == texts.end() ? std::nullopt : std::optional<std::string>{found->second};
    }
    std::optional<std::string> read_text(const std::string& path) const override {
        return read_file(path);
    }
    std::string host_name() const override { return own_name; }
    std::vector<int> allowed_cpus() const override { return cpus; }
    std::vector<NetworkInterface> interfaces() const override {
        return {{.name = "lo", .is_up = true, .is_loopback = true, .addresses = {"127.0.0.1"}},
                {.name = "eth0", .is_up = true, .addresses = {"10.0.0.7"}},
                {.name = "eth01", .is_up = true, .addresses = {"10.1.0.7"}},
                {.name = "eth1", .is_up = false, .addresses = {"10.2.0.7"}},
                {.name = "ib0", .is_up = true, .addresses = {}}};
    }
    std::optional<std::vector<Gpu>> gpus_of_nvml() const override {
        ++gpu_questions;
        return gpus;
    }
    Result<Topology> topology() const override {
        ++topology_questions;
        return machine;
    }
};

using Arguments = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

/// `arguments` split at blanks; no shell.
inline Arguments words(const std::string& arguments) {
    Arguments result;
    std::size_t start = 0;
    while ((start = arguments.find_first_not_of(' ', start)) != std::string::npos) {
        const std::size_t end = std::min(arguments.find(' ', start), arguments.size());
        result.push_back(arguments.substr(start, end - start));
        start = end;
    }
    return result;
}

inline PlanOutcome outcome_of(const Arguments& arguments, const Variables& variables = {}) {
    FakeSurroundings surroundings;
    for (const auto& [name, value] : variables) {
        surroundings.variables[name] = value;
    }
    return make_plan(arguments, surroundings);
}

inline LaunchPlan as_plan(const PlanOutcome& outcome) {
    if (const auto* error = std::get_if<UsageError>(&outcome)) {
        FAIL("refused: " << error->line);
    }
    REQUIRE(std::holds_alternative<LaunchPlan>(outcome));
    return std::get<LaunchPlan>(outcome);
}

/// The plan for these words and the program train.py.
inline LaunchPlan plan_of(const std::string& flags, const Variables& variables = {}) {
    INFO("flags: " << flags);
    return as_plan(outcome_of(words(flags + " train.py"), variables));
}

inline UsageError as_error(const PlanOutcome& outcome) {
    REQUIRE(std::holds_alternative<UsageError>(outcome));
    return std::get<UsageError>(outcome);
}

/// The line with which these words and the program train.py are refused, with code 2.
inline std::string refusal_of(const std::string& flags, const Variables& variables = {}) {
    INFO("flags: " << flags);
    const UsageError error = as_error(outcome_of(words(flags + " train.py"), variables));
    CHECK(error.exit_code == 2);
    return error.line;
}

}  // namespace ddprun::launcher::test
