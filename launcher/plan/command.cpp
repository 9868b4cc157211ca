// Chooses the command that a worker executes.

#include <string>
#include <utility>
#include <vector>

#include "launcher/plan/program.hpp"
#include "launcher/plan/script_flags.hpp"
#include "launcher/plan/sections.hpp"

namespace ddprun::launcher {

Result<void> take_program(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan) {
    if (line.is_on("module") && line.is_on("no-python") && !line.is_on("run-path")) {
        return Error{ErrorCode::InvalidArgument,
                     "--module and --no-python contradict each other; leave one out"};
    }
    const bool passes_local_rank = line.is_on("legacy-launch") && !line.is_on("use-env");
    if (passes_local_rank && line.is_on("no-python")) {
        return Error{ErrorCode::InvalidArgument,
                     "--no-python with --legacy-launch: a program that is no Python script is not "
                     "passed --local-rank; add --use-env, it finds LOCAL_RANK in its environment"};
    }
    if (line.program().empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "no program given; write ddprun [flags] PROGRAM [its arguments ...], "
                     "ddprun --help shows examples"};
    }
    const ProgramMode mode = line.is_on("run-path")    ? ProgramMode::RunPath
                             : line.is_on("module")    ? ProgramMode::Module
                             : line.is_on("no-python") ? ProgramMode::Direct
                                                       : ProgramMode::Guess;
    std::vector<std::string> typed = line.program();
    if (passes_local_rank) {
        typed.insert(typed.begin() + 1, local_rank_argument(mode, typed.front(), surroundings));
    }
    if (std::string warning = misplaced_flags(mode, line.program(), surroundings);
        !warning.empty()) {
        plan.warnings.push_back(std::move(warning));
    }
    Result<Program> program = resolve_program(mode, typed, surroundings);
    if (!program) {
        return program.error();
    }
    plan.agent.supervisor.command = std::move(program->command);
    plan.program_file = std::move(program->file);
    plan.python = std::move(program->python);
    plan.python_origin = std::move(program->python_origin);
    plan.takes_python_path = program->takes_python_path;
    if (!program->note.empty()) {
        plan.notes.push_back(std::move(program->note));
    }
    plan.agent.program = line.program().front();
    return {};
}

}  // namespace ddprun::launcher
