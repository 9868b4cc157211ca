#include "launcher/plan/program.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/search_path.hpp"

namespace ddprun::launcher {

namespace {

Error not_found(std::string line) {
    return Error{ErrorCode::NotFound, std::move(line)};
}

Error not_executable(std::string line) {
    return Error{ErrorCode::PermissionDenied, std::move(line)};
}

bool is_python_file(std::string_view name) {
    return name.ends_with(".py");
}

/// What runs a script as torchrun's --run-path does: as __main__, without the script's folder in
/// sys.path, and with an exception left in the error file.
constexpr std::string_view kRunPath = R"(import runpy, sys
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name='__main__')
except Exception as error:
    import json, os, time, traceback
    path = os.environ.get('TORCHELASTIC_ERROR_FILE')
    if path:
        with open(path, 'w') as file:
            json.dump({'message': {'message': f'{type(error).__name__}: {error}', 'extraInfo': {
                'py_callstack': traceback.format_exc(), 'timestamp': str(int(time.time()))}}}, file)
    raise
)";

/// Where PATH has `name`, and where it has it without the permission to execute it.
struct PathLookup {
    std::optional<std::string> executable;
    std::optional<std::string> forbidden;
};

PathLookup look_up(const std::string& name, const Surroundings& surroundings) {
    const std::string path =
        surroundings.variable("PATH").value_or(std::string{kDefaultSearchPath});
    PathLookup lookup;
    for (const std::string& candidate : places_in_path(path, name)) {
        if (surroundings.is_executable_file(candidate)) {
            lookup.executable = candidate;
            break;
        }
        if (!lookup.forbidden && surroundings.exists(candidate) &&
            !surroundings.is_directory(candidate)) {
            lookup.forbidden = candidate;
        }
    }
    return lookup;
}

/// Why a path that exists cannot be executed, and what to do.
Error refuse_existing(const std::string& path, const Surroundings& surroundings) {
    if (surroundings.is_directory(path)) {
        return not_executable(
            fmt::format("cannot run {}: it is a folder; name the program in it, "
                        "or use -m for a Python package",
                        path));
    }
    if (is_python_file(path)) {
        return not_executable(
            fmt::format("cannot run {}: it is not executable; leave out "
                        "--no-python to run it with Python, or chmod +x {}",
                        path, path));
    }
    return not_executable(
        fmt::format("cannot run {}: it is not executable; chmod +x {}, or if it "
                    "is a Python script: ddprun ... python3 {}",
                    path, path, path));
}

Error refuse_missing(const std::string& name, std::string_view where,
                     const Surroundings& surroundings) {
    const std::string script = name + ".py";
    const std::string hint = surroundings.exists(script)
                                 ? fmt::format("did you mean {}?", script)
                                 : std::string{"check the name and the working folder"};
    return not_found(fmt::format("cannot run {}: {}; {}", name, where, hint));
}

Result<std::string> find_executable(const std::string& name, const Surroundings& surroundings) {
    if (name.find('/') != std::string::npos) {
        if (surroundings.is_executable_file(name)) {
            return name;
        }
        return surroundings.exists(name) ? refuse_existing(name, surroundings)
                                         : refuse_missing(name, "no such file", surroundings);
    }
    const std::string here = "./" + name;
    if (surroundings.is_executable_file(here)) {
        return here;
    }
    const PathLookup lookup = look_up(name, surroundings);
    if (lookup.executable) {
        return *lookup.executable;
    }
    if (surroundings.exists(here)) {
        return refuse_existing(here, surroundings);
    }
    if (lookup.forbidden) {
        return refuse_existing(*lookup.forbidden, surroundings);
    }
    return refuse_missing(name, "no such program here or in PATH", surroundings);
}

Result<std::string> find_python(const std::string& needed_by, const Surroundings& surroundings) {
    const std::optional<std::string> chosen = surroundings.variable("PYTHON_EXEC");
    const bool is_chosen = chosen && !chosen->empty();
    const std::string name = is_chosen ? *chosen : std::string{"python3"};
    // Never ./python3: a file of that name beside a script is not the interpreter.
    const bool is_path = name.find('/') != std::string::npos;
    const PathLookup lookup = is_path ? PathLookup{} : look_up(name, surroundings);
    if (lookup.executable) {
        return *lookup.executable;
    }
    if (is_path && surroundings.is_executable_file(name)) {
        return name;
    }
    const bool is_there = is_path ? surroundings.exists(name) : lookup.forbidden.has_value();
    const std::string line =
        is_chosen ? fmt::format(
                        "cannot run {}: PYTHON_EXEC={} {}; set it to a Python interpreter, "
                        "or unset it",
                        needed_by, name, is_there ? "is not executable" : "does not exist")
                  : fmt::format(
                        "cannot run {}: python3 is not in PATH; install it, activate its "
                        "environment, or set PYTHON_EXEC=/path/to/python",
                        needed_by);
    return is_there ? not_executable(line) : not_found(line);
}

}  // namespace

Result<std::vector<std::string>> resolve_program(ProgramMode mode,
                                                 const std::vector<std::string>& typed,
                                                 const Surroundings& surroundings) {
    const std::string& name = typed.front();
    if (name.empty()) {
        return not_found("cannot run '': the program's name is empty; is a variable unset?");
    }
    const bool is_script =
        (mode == ProgramMode::Guess && is_python_file(name)) || mode == ProgramMode::RunPath;
    std::vector<std::string> command;
    if (mode == ProgramMode::Module || is_script) {
        if (is_script && !surroundings.exists(name)) {
            return refuse_missing(name, "no such file", surroundings);
        }
        if (mode == ProgramMode::Guess && surroundings.is_directory(name)) {
            return refuse_existing(name, surroundings);
        }
        const Result<std::string> python = find_python(name, surroundings);
        if (!python) {
            return python.error();
        }
        command = {*python, "-u"};
        if (mode == ProgramMode::Module) {
            command.emplace_back("-m");
        } else if (mode == ProgramMode::RunPath) {
            command.emplace_back("-c");
            command.emplace_back(kRunPath);
        }
        command.push_back(name);
    } else {
        const Result<std::string> executable = find_executable(name, surroundings);
        if (!executable) {
            return executable.error();
        }
        command = {*executable};
    }
    command.insert(command.end(), typed.begin() + 1, typed.end());
    return command;
}

}  // namespace ddprun::launcher
