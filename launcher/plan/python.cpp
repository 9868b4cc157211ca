#include "launcher/plan/python.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "launcher/plan/path_lookup.hpp"

namespace ddprun::launcher {

namespace {

constexpr const char* kChosen = "PYTHON_EXEC";

Error refuse(bool is_there, std::string line) {
    return Error{is_there ? ErrorCode::PermissionDenied : ErrorCode::NotFound, std::move(line)};
}

/// The one that the user has named, as a path or as a name in PATH. Never ./NAME: a file beside a
/// script is not the interpreter.
Result<Python> find_chosen(const std::string& name, const std::string& needed_by,
                           const Surroundings& surroundings) {
    const bool is_path = name.find('/') != std::string::npos;
    const PathLookup lookup = is_path ? PathLookup{} : look_up_in_path(name, surroundings);
    if (lookup.executable) {
        return Python{.path = *lookup.executable, .origin = kChosen, .note = {}};
    }
    if (is_path && surroundings.is_executable_file(name)) {
        return Python{.path = name, .origin = kChosen, .note = {}};
    }
    const bool is_there = is_path ? surroundings.exists(name) : lookup.forbidden.has_value();
    return refuse(is_there,
                  fmt::format("cannot run {}: PYTHON_EXEC={} {}; set it to a Python interpreter, "
                              "or unset it",
                              needed_by, name, is_there ? "is not executable" : "does not exist"));
}

/// Looks for the package's folder where installers put it; no program is run for that.
bool has_torch(const std::string& prefix, const Surroundings& surroundings) {
    for (const char* library : {"/lib", "/lib64"}) {
        for (const std::string& name : surroundings.names_in(prefix + library)) {
            const std::string folder = prefix + library + "/" + name;
            if (name.starts_with("python3") &&
                (surroundings.is_directory(folder + "/site-packages/torch") ||
                 surroundings.is_directory(folder + "/dist-packages/torch"))) {
                return true;
            }
        }
    }
    return false;
}

std::string folder_of(const std::string& path) {
    return path.substr(0, path.rfind('/'));
}

/// A virtual environment or one of conda. `pipx install` and `uv tool install` make one for a tool
/// alone: the scripts' packages are elsewhere.
bool is_environment_for_scripts(const std::string& root, const Surroundings& surroundings) {
    const bool is_environment = surroundings.exists(root + "/pyvenv.cfg") ||
                                surroundings.is_directory(root + "/conda-meta");
    return is_environment && !surroundings.exists(root + "/pipx_metadata.json") &&
           !surroundings.exists(root + "/uv-receipt.toml");
}

struct Candidate {
    std::string path;
    std::string_view origin;
};

/// Best first; each may be executed. PYTHON_EXEC gives no candidate.
std::vector<Candidate> candidates(const Surroundings& surroundings, const PathLookup& in_path) {
    std::vector<Candidate> found;
    const auto consider = [&](const std::string& folder, std::string_view origin) {
        if (surroundings.is_executable_file(folder + "/python3")) {
            found.push_back({folder + "/python3", origin});
        }
    };
    const std::string own = surroundings.own_folder();
    if (own.find('/') != std::string::npos && has_torch(folder_of(own), surroundings)) {
        consider(own, "where ddprun is installed");
    }
    for (const auto& [variable, origin] :
         {std::pair{"VIRTUAL_ENV", "$VIRTUAL_ENV"}, std::pair{"CONDA_PREFIX", "$CONDA_PREFIX"}}) {
        const std::optional<std::string> prefix = surroundings.variable(variable);
        if (prefix && !prefix->empty()) {
            consider(*prefix + "/bin", origin);
        }
    }
    const std::string started = surroundings.started_folder();
    if (started.find('/') != std::string::npos &&
        is_environment_for_scripts(folder_of(started), surroundings)) {
        consider(started, "beside ddprun");
    }
    if (in_path.executable) {
        found.push_back({*in_path.executable, "PATH"});
    }
    return found;
}

/// Folders are compared, not files: the Python of an environment is a link to another one's.
std::string note_of(const std::vector<Candidate>& found, const Surroundings& surroundings) {
    std::string others;
    for (auto other = found.begin() + 1; other != found.end(); ++other) {
        const bool is_named = std::any_of(found.begin(), other, [&](const Candidate& one) {
            return surroundings.is_same_folder(folder_of(one.path), folder_of(other->path));
        });
        if (!is_named) {
            others +=
                fmt::format("{}{} ({})", others.empty() ? "" : ", ", other->path, other->origin);
        }
    }
    return others.empty() ? others
                          : fmt::format(
                                "Python: {} ({}), not {}; PYTHON_EXEC=/path/to/python "
                                "chooses another",
                                found.front().path, found.front().origin, others);
}

}  // namespace

Result<Python> find_python(const std::string& needed_by, const Surroundings& surroundings) {
    const std::optional<std::string> chosen = surroundings.variable("PYTHON_EXEC");
    if (chosen && !chosen->empty()) {
        return find_chosen(*chosen, needed_by, surroundings);
    }
    const PathLookup in_path = look_up_in_path("python3", surroundings);
    const std::vector<Candidate> found = candidates(surroundings, in_path);
    if (found.empty()) {
        return refuse(in_path.forbidden.has_value(),
                      fmt::format("cannot run {}: python3 is not in PATH; install it, activate its "
                                  "environment, or set PYTHON_EXEC=/path/to/python",
                                  needed_by));
    }
    return Python{.path = found.front().path,
                  .origin = std::string(found.front().origin),
                  .note = note_of(found, surroundings)};
}

}  // namespace ddprun::launcher
