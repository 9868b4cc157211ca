#include "launcher/plan/program.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "launcher/plan/nearest_name.hpp"
#include "launcher/plan/path_lookup.hpp"
#include "launcher/plan/python.hpp"

namespace ddprun::launcher {

namespace {

Error not_found(std::string line) {
    return Error{ErrorCode::NotFound, std::move(line)};
}

bool is_python_file(std::string_view name) {
    return name.ends_with(".py");
}

bool is_python(std::string_view path) {
    return path.substr(path.rfind('/') + 1).starts_with("python");
}

/// The script in an interpreter's command line; empty: it runs none, or that is not known.
std::string script_in(const std::vector<std::string>& typed) {
    const auto script = std::find_if(typed.begin() + 1, typed.end(), [](const std::string& word) {
        return !word.starts_with('-') || word == "-m" || word == "-c";
    });
    return script != typed.end() && is_python_file(*script) ? *script : std::string();
}

/// Whether this Python reads PYTHONPATH and imports `site`: that -I, -E and -S are not among its
/// options, which end at the first word that is none, at -c or -m.
bool takes_python_path(const std::vector<std::string>& typed) {
    for (std::size_t i = 1; i < typed.size() && typed[i].starts_with('-'); ++i) {
        for (const char option : std::string_view(typed[i]).substr(1)) {
            if (option == 'I' || option == 'E' || option == 'S') {
                return false;
            }
            if (option == 'c' || option == 'm') {
                return true;
            }
            if (option == 'W' || option == 'X' || option == '-') {  // The rest is its value.
                i += typed[i].ends_with(option) && option != '-' ? 1 : 0;
                break;
            }
        }
    }
    return true;
}

/// The module's file in the working folder; an installed module is told apart by versions.
std::string file_of_module(std::string name, const Surroundings& surroundings) {
    std::replace(name.begin(), name.end(), '.', '/');
    for (const char* ending : {".py", "/__main__.py"}) {
        if (surroundings.exists(name + ending)) {
            return name + ending;
        }
    }
    return {};
}

/// The code that runs a script as torchrun's --run-path does: as __main__, without the script's
/// folder in sys.path, and with an exception left in the error file.
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

/// Why a path that exists cannot be executed, and what to do.
Error refuse_existing(const std::string& path, const Surroundings& surroundings) {
    const std::string why =
        surroundings.is_directory(path)
            ? "it is a folder; name the program in it, or use -m for a Python package"
        : is_python_file(path) ? fmt::format(
                                     "it is not executable; leave out --no-python to run it with "
                                     "Python, or chmod +x {}",
                                     path)
                               : fmt::format(
                                     "it is not executable; chmod +x {0}, or if it is a Python "
                                     "script: ddprun ... python3 {0}",
                                     path);
    return Error{ErrorCode::PermissionDenied, fmt::format("cannot run {}: {}", path, why)};
}

/// The program or script beside the one that is missing whose name was misspelt; empty: none.
std::string meant_by(const std::string& name, const Surroundings& surroundings) {
    if (surroundings.exists(name + ".py")) {
        return name + ".py";
    }
    const std::size_t begin = name.rfind('/') + 1;
    const std::string folder = name.substr(0, begin);
    std::vector<std::string> names =
        surroundings.names_in(begin == 0   ? surroundings.working_directory()
                              : begin == 1 ? "/"
                                           : name.substr(0, begin - 1));
    std::sort(names.begin(), names.end());
    std::vector<std::string_view> runnable;
    for (const std::string& other : names) {
        if (is_python_file(other) || surroundings.is_executable_file(folder + other)) {
            runnable.push_back(other);
        }
    }
    const std::string typed = name.substr(begin);
    std::string_view nearest = nearest_name(typed, runnable);
    if (nearest.empty()) {
        nearest = nearest_name(typed + ".py", runnable);
    }
    return nearest.empty() ? std::string() : folder + std::string(nearest);
}

Error refuse_missing(const std::string& name, std::string_view where,
                     const Surroundings& surroundings) {
    const std::string meant = meant_by(name, surroundings);
    const std::string hint = meant.empty() ? std::string{"check the name and the working folder"}
                                           : fmt::format("did you mean {}?", meant);
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
    const PathLookup lookup = look_up_in_path(name, surroundings);
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

}  // namespace

Result<Program> resolve_program(ProgramMode mode, const std::vector<std::string>& typed,
                                const Surroundings& surroundings) {
    const std::string& name = typed.front();
    if (name.empty()) {
        return not_found("cannot run '': the program's name is empty; is a variable unset?");
    }
    const bool is_script =
        (mode == ProgramMode::Guess && is_python_file(name)) || mode == ProgramMode::RunPath;
    Program program;
    std::vector<std::string>& command = program.command;
    if (mode == ProgramMode::Module || is_script) {
        if (is_script && !surroundings.exists(name)) {
            return refuse_missing(name, "no such file", surroundings);
        }
        if (mode == ProgramMode::Guess && surroundings.is_directory(name)) {
            return refuse_existing(name, surroundings);
        }
        const Result<Python> python = find_python(name, surroundings);
        if (!python) {
            return python.error();
        }
        program.note = python->note;
        program.takes_python_path = true;
        program.python = python->path;
        program.python_origin = python->origin;
        program.file = mode == ProgramMode::Module ? file_of_module(name, surroundings) : name;
        command = {python->path, "-u"};
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
        if (is_python(*executable)) {
            program.python = *executable;
            program.file = script_in(typed);
            program.takes_python_path = takes_python_path(typed);
        } else {
            program.file = *executable;
        }
    }
    command.insert(command.end(), typed.begin() + 1, typed.end());
    return program;
}

}  // namespace ddprun::launcher
