#include "worker_runtime/checkpoint/folder.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/rng.hpp"
#include "base/whole_number.hpp"

namespace ddprun::worker {

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kRandomDigits = 16;

// Missing parents first; each new name is made durable in its parent.
std::optional<Error> create_folder(const std::filesystem::path& dir) {
    std::error_code code;
    if (std::filesystem::is_directory(dir, code)) {
        return std::nullopt;
    }
    const std::filesystem::path parent = dir.has_parent_path() ? dir.parent_path() : ".";
    if (parent != dir) {
        if (std::optional<Error> problem = create_folder(parent)) {
            return problem;
        }
    }
    if (::mkdir(dir.c_str(), 0777) != 0 && errno != EEXIST) {
        return system_error(errno, fmt::format("folder {} cannot be created", dir.string()));
    }
    const Result<UniqueFd> parent_fd = open_folder(parent.string());
    if (!parent_fd) {
        return parent_fd.error();
    }
    return sync_folder(parent_fd->get(), parent.string());
}

bool is_taken(int errno_value) {
    return errno_value == EEXIST || errno_value == ENOTEMPTY || errno_value == ENOTDIR;
}

}  // namespace

std::string step_folder_name(std::int64_t step) {
    return fmt::format("{}{:012}", kStepPrefix, step);
}

std::optional<std::int64_t> step_of_folder_name(std::string_view name) {
    if (!name.starts_with(kStepPrefix)) {
        return std::nullopt;
    }
    const auto step = whole_number<std::int64_t>(name.substr(kStepPrefix.size()));
    return step && *step >= 0 && step_folder_name(*step) == name ? step : std::nullopt;
}

std::string aside_name(std::int64_t step, std::string_view ending) {
    return fmt::format(".{}.{:016x}{}", step_folder_name(step), random_seed(), ending);
}

std::optional<std::int64_t> step_of_aside_name(std::string_view name, std::string_view ending) {
    const std::size_t behind = 1 + kRandomDigits + ending.size();
    if (!name.starts_with('.') || !name.ends_with(ending) || name.size() < 1 + behind ||
        name[name.size() - behind] != '.') {
        return std::nullopt;
    }
    return step_of_folder_name(name.substr(1, name.size() - behind - 1));
}

std::optional<Error> sync_folder(int fd, const std::string& dir) {
    if (::fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP) {
        return std::nullopt;
    }
    return system_error(errno, fmt::format("folder {} cannot be synced", dir));
}

Result<UniqueFd> open_folder(const std::string& dir) {
    UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.is_open()) {
        return system_error(errno, fmt::format("folder {} cannot be opened", dir));
    }
    return fd;
}

Result<UniqueFd> open_or_create_folder(const std::string& dir) {
    if (dir.empty()) {
        return Error{ErrorCode::InvalidArgument, "no checkpoint folder is given; name one"};
    }
    std::filesystem::path path(dir);
    if (!path.has_filename()) {
        path = path.parent_path();  // "a/b/" is "a/b"
    }
    if (std::optional<Error> problem = create_folder(path)) {
        return *problem;
    }
    return open_folder(dir);
}

Result<std::vector<std::string>> list_names(const std::string& dir) {
    std::vector<std::string> names;
    std::error_code problem;
    std::filesystem::directory_iterator entry(dir, problem);
    for (; entry != std::filesystem::directory_iterator(); entry.increment(problem)) {
        if (names.size() == kFolderEntriesMax) {
            return Error{ErrorCode::LimitExceeded,
                         fmt::format("folder {} has more than {} entries; give checkpoints a "
                                     "folder of their own",
                                     dir, kFolderEntriesMax)};
        }
        names.push_back(entry->path().filename());
    }
    if (problem) {
        return system_error(problem.value(), fmt::format("folder {} cannot be listed", dir));
    }
    return names;
}

Result<PutInPlace> put_in_place(int dir_fd, const std::string& from, std::int64_t step,
                                Exchange exchange) {
    const std::string place = step_folder_name(step);
    const auto rename_to = [&](const std::string& source, const std::string& target) {
        return ::renameat(dir_fd, source.c_str(), dir_fd, target.c_str()) == 0 ? 0 : errno;
    };
    const auto failed = [&](int errno_value) {
        return system_error(errno_value, fmt::format("{} cannot be renamed to {}", from, place));
    };
    int problem = rename_to(from, place);
    if (problem == 0) {
        return PutInPlace{};
    }
    if (!is_taken(problem)) {
        return failed(problem);
    }
    if (exchange == Exchange::IfPossible) {
        if (::renameat2(dir_fd, from.c_str(), dir_fd, place.c_str(), RENAME_EXCHANGE) == 0) {
            return PutInPlace{.replaced = from};
        }
        if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
            return failed(errno);
        }
    }
    const std::string replaced = aside_name(step, kReplacedEnding);
    problem = rename_to(place, replaced);
    if (problem != 0) {
        return failed(problem);
    }
    problem = rename_to(from, place);
    if (problem != 0) {
        (void)rename_to(replaced, place);
        return failed(problem);
    }
    return PutInPlace{.replaced = replaced};
}

void take_back(int dir_fd, const std::string& from, std::int64_t step, const PutInPlace& put) {
    const std::string place = step_folder_name(step);
    const auto rename_to = [&](const std::string& source, const std::string& target) {
        (void)::renameat(dir_fd, source.c_str(), dir_fd, target.c_str());
    };
    if (put.replaced == from) {
        (void)::renameat2(dir_fd, from.c_str(), dir_fd, place.c_str(), RENAME_EXCHANGE);
        return;
    }
    rename_to(place, from);
    if (!put.replaced.empty()) {
        rename_to(put.replaced, place);
    }
}

bool remove_all_of(const std::string& path) {
    std::error_code code;
    std::filesystem::remove_all(path, code);
    return !code;
}

}  // namespace ddprun::worker
