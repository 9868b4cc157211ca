#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

enum class FlagGroup { Size, Meeting, Failing, Program, Placement, Output, Other, Hidden };

struct Given;
struct LaunchPlan;

/// Writes a flag's value into the plan; fails with a line for the user.
using FillPlan = Result<void> (*)(const Given& given, LaunchPlan& plan);

/// One flag of ddprun. Its dashed and its underscored spelling mean the same, and PET_<NAME> is
/// its default where `reads_environment`.
struct Flag {
    std::string_view name;         ///< long and dashed, without "--"
    char letter = '\0';            ///< short form; 0: none
    std::string_view placeholder;  ///< of the value, for help and errors; empty: a switch
    FlagGroup group = FlagGroup::Other;
    std::string_view elsewhere;  ///< what other launchers call it, with blanks between
    std::string_view variable;   ///< of torchrun's, its default where PET_<NAME> is not set
    std::string_view conf_key;   ///< of --rdzv-conf, where it means the same; the flag wins
    std::string_view help;       ///< lines of the help text; empty for Hidden
    bool is_common = false;      ///< --help shows it; --help-all shows every flag but Hidden ones
    bool reads_environment = true;
    FillPlan fill = nullptr;  ///< null: a step of make_plan() reads it together with others

    [[nodiscard]] constexpr bool is_switch() const { return placeholder.empty(); }
};

/// All flags, in the order of the help text.
[[nodiscard]] std::span<const Flag> all_flags();

/// The flag whose long name `argument` has, alone or before "=", in either spelling; null: none.
[[nodiscard]] const Flag* long_flag(std::string_view argument);

/// A value and where it came from, for error texts.
struct Given {
    std::string source;  ///< "--nnodes", "PET_NNODES" or "--rdzv-conf join_timeout"
    std::string value;

    /// As the user would recognise it: "--nnodes 3:1", "PET_NNODES=3:1".
    [[nodiscard]] std::string shown() const;
};

/// The command line, cut up: command line before PET_* variables, nothing checked but the form.
class CommandLine {
public:
    /// The flag's value; none when neither given nor in the environment, or given empty in the
    /// environment.
    [[nodiscard]] std::optional<Given> value(std::string_view name) const;
    [[nodiscard]] bool is_on(std::string_view name) const;
    /// The flag's value, of a switch that it is on; none where nothing is asked.
    [[nodiscard]] std::optional<Given> asked(const Flag& flag) const;
    /// Sets the value that value() gives if the flag was not given.
    void set_default(std::string_view name, Given given);

    /// The program and its arguments, untouched.
    [[nodiscard]] const std::vector<std::string>& program() const { return program_; }

private:
    friend Result<CommandLine> read_command_line(const std::vector<std::string>& arguments,
                                                 const Surroundings& surroundings);
    std::map<std::string, Given, std::less<>> values_;
    std::map<std::string, bool, std::less<>> switches_;
    std::vector<std::string> program_;
};

/// Flags end at the first argument that is no flag and no flag's value, or after "--": that and
/// all behind it is the program's and is not read. Flags are never abbreviated. Fails with a
/// line for the user.
[[nodiscard]] Result<CommandLine> read_command_line(const std::vector<std::string>& arguments,
                                                    const Surroundings& surroundings);

}  // namespace ddprun::launcher
