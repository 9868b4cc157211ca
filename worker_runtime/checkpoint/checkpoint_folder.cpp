#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

constexpr const char* kModelFile = "model-00001-of-00001.safetensors";

// A folder aside that is removed with all it holds unless it was put in place.
class Attempt {
public:
    Attempt(const std::string& dir, std::int64_t step)
        : name_(aside_name(step, kPartialEnding)), path_(path_of(dir, name_)) {}
    Attempt(const Attempt&) = delete;
    Attempt& operator=(const Attempt&) = delete;
    ~Attempt() {
        if (is_to_remove_) {
            remove_all_of(path_);
        }
    }

    std::optional<Error> create() {
        if (::mkdir(path_.c_str(), 0777) != 0) {
            return system_error(errno, fmt::format("folder {} cannot be created", path_));
        }
        is_to_remove_ = true;
        return std::nullopt;
    }
    void keep() { is_to_remove_ = false; }

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] const std::string& path() const { return path_; }

private:
    std::string name_;
    std::string path_;
    bool is_to_remove_ = false;
};

// Everything of a checkpoint, on disk in `folder`.
std::optional<Error> write_checkpoint(const std::string& folder, const CheckpointInfo& info,
                                      const SafetensorsPlan& plan) {
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(plan.header))};
    for (const TensorView* const tensor : plan.tensors) {
        pieces.push_back(tensor->bytes);
    }
    const Result<ManifestFile> model =
        write_file(folder_fd->get(), kModelFile, path_of(folder, kModelFile), pieces);
    if (!model) {
        return model.error();
    }
    const Result<std::string> text = format_manifest(Manifest{.info = info, .files = {*model}});
    if (!text) {
        return text.error();
    }
    const std::string name(kManifestName);
    const Result<ManifestFile> manifest = write_file(folder_fd->get(), name, path_of(folder, name),
                                                     {std::as_bytes(std::span(*text))});
    if (!manifest) {
        return manifest.error();
    }
    return sync_folder(folder_fd->get(), folder);
}

// Under another name first, so that no reader finds half of it.
bool retire(const std::string& dir, std::int64_t step) {
    const std::string aside = path_of(dir, aside_name(step, kPartialEnding));
    return ::rename(path_of(dir, step_folder_name(step)).c_str(), aside.c_str()) == 0 &&
           remove_all_of(aside);
}

// Only what looks complete is counted, so that torn checkpoints do not push out the last good one.
// Newer ones are left alone: training went on from before them, because they could not be read.
void remove_old(const std::string& dir, std::int64_t written, const PublishOptions& options) {
    const Result<std::vector<std::int64_t>> steps = list_checkpoints(dir);
    if (!steps) {
        options.on_warning("old checkpoints are not removed: " + steps.error().what);
        return;
    }
    int kept = 0;
    for (const std::int64_t step : *steps) {
        const std::string folder = path_of(dir, step_folder_name(step));
        if (step > written) {
            continue;
        }
        if (step == written || (kept < options.keep && look_into(dir, step).has_value())) {
            ++kept;
        } else if (kept >= options.keep && !retire(dir, step)) {
            options.on_warning(fmt::format("old checkpoint {} cannot be removed", folder));
        }
    }
}

std::optional<Error> read_shard(int folder_fd, const std::string& folder,
                                const ManifestFile& listed, std::vector<FileBytes>& storage,
                                LoadedCheckpoint& loaded) {
    const Result<OpenFile> file = open_listed(folder_fd, folder, listed);
    if (!file) {
        return file.error();
    }
    Xxh3Hasher hasher;
    Result<FileBytes> bytes = read_file(*file, &hasher);
    if (!bytes) {
        return bytes.error();
    }
    const auto bad = [&](const std::string& why) {
        return Error{ErrorCode::BadMessage, file->path + ": " + why};
    };
    if (const Result<void> checked = check_checksum(*file, listed, hasher.hex()); !checked) {
        return checked.error();
    }
    storage.push_back(*std::move(bytes));
    Result<std::vector<TensorView>> tensors = parse_safetensors(storage.back().bytes());
    if (!tensors) {
        return bad(tensors.error().what);
    }
    for (TensorView& tensor : *tensors) {
        const std::string name = tensor.name;
        if (!loaded.tensors.emplace(name, std::move(tensor)).second) {
            return bad(fmt::format("tensor {} is in another file too", in_quotes(name)));
        }
    }
    return std::nullopt;
}

Result<LoadedCheckpoint> read_folder(const std::string& folder, std::int64_t step) {
    // The descriptor holds this checkpoint even if another takes its name meanwhile.
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    Result<Manifest> manifest = read_manifest(folder_fd->get(), folder, step);
    if (!manifest) {
        return manifest.error();
    }
    LoadedCheckpoint loaded;
    loaded.info = std::move(manifest->info);
    auto storage = std::make_shared<std::vector<FileBytes>>();
    for (const ManifestFile& file : manifest->files) {
        if (const std::optional<Error> problem =
                read_shard(folder_fd->get(), folder, file, *storage, loaded)) {
            return *problem;
        }
    }
    loaded.storage = std::move(storage);
    return loaded;
}

}  // namespace

Result<void> check_checkpoint_folder(const std::string& dir) {
    const auto failed = [&](const Error& why) {
        return Error{why.code, fmt::format("folder {} cannot hold checkpoints: {}; name one that "
                                           "this user may write",
                                           dir, why.what)};
    };
    const Result<UniqueFd> dir_fd = open_or_create_folder(dir);
    if (!dir_fd) {
        return failed(dir_fd.error());
    }
    Attempt attempt(dir, 0);
    if (const std::optional<Error> problem = attempt.create()) {
        return failed(*problem);
    }
    const Result<UniqueFd> folder_fd = open_folder(attempt.path());
    if (!folder_fd) {
        return failed(folder_fd.error());
    }
    const std::string name(kManifestName);
    const Result<ManifestFile> written =
        write_file(folder_fd->get(), name, path_of(attempt.path(), name), {});
    return written ? Result<void>() : Result<void>(failed(written.error()));
}

Result<std::string> publish_checkpoint(const std::string& dir, const CheckpointInfo& info,
                                       const std::vector<TensorView>& tensors,
                                       const PublishOptions& options) {
    const auto failed = [&](const Error& why) {
        return Error{why.code, fmt::format("checkpoint of step {} was not written to {}: {}",
                                           info.step, dir, why.what)};
    };
    if (options.keep < 1) {
        return failed(
            Error{ErrorCode::InvalidArgument,
                  fmt::format("{} checkpoints are to be kept; give 1 or more", options.keep)});
    }
    const Result<SafetensorsPlan> plan = plan_safetensors(tensors);
    if (!plan) {
        return failed(plan.error());
    }
    const Result<UniqueFd> dir_fd = open_or_create_folder(dir);
    if (!dir_fd) {
        return failed(dir_fd.error());
    }
    Attempt attempt(dir, info.step);
    if (const std::optional<Error> problem = attempt.create()) {
        return failed(*problem);
    }
    if (const std::optional<Error> problem = write_checkpoint(attempt.path(), info, *plan)) {
        return failed(*problem);
    }
    if (options.is_isolated()) {
        return failed(Error{ErrorCode::Refused,
                            "this node is isolated, another generation may be running; nothing is "
                            "to be done, the group starts again from the newest checkpoint"});
    }
    const Result<PutInPlace> put =
        put_in_place(dir_fd->get(), attempt.name(), info.step, Exchange::IfPossible);
    if (!put) {
        return failed(put.error());
    }
    if (const std::optional<Error> problem = sync_folder(dir_fd->get(), dir)) {
        take_back(dir_fd->get(), attempt.name(), info.step, *put);
        return failed(*problem);
    }
    attempt.keep();
    if (!put->replaced.empty() && !remove_all_of(path_of(dir, put->replaced))) {
        options.on_warning(fmt::format("the replaced checkpoint {} cannot be removed",
                                       path_of(dir, put->replaced)));
    }
    remove_old(dir, info.step, options);
    return path_of(dir, step_folder_name(info.step));
}

Result<std::vector<std::int64_t>> list_checkpoints(const std::string& dir) {
    const Result<std::vector<std::string>> names = list_names(dir);
    if (!names) {
        if (::access(dir.c_str(), F_OK) != 0 && errno == ENOENT) {
            return std::vector<std::int64_t>{};
        }
        return names.error();
    }
    std::vector<std::int64_t> steps;
    for (const std::string& name : *names) {
        struct stat status {};
        const std::optional<std::int64_t> step = step_of_folder_name(name);
        if (step && ::stat(path_of(dir, name).c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
            steps.push_back(*step);
        }
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
}

Result<LoadedCheckpoint> read_checkpoint(const std::string& dir, std::int64_t step) {
    Result<LoadedCheckpoint> loaded = read_folder(path_of(dir, step_folder_name(step)), step);
    if (!loaded) {
        return Error{loaded.error().code, fmt::format("checkpoint of step {} cannot be used: {}",
                                                      step, loaded.error().what)};
    }
    return loaded;
}

Result<std::vector<std::string>> files_of_checkpoint(const std::string& dir, std::int64_t step) {
    const Result<Manifest> manifest = look_into(dir, step);
    if (!manifest) {
        return manifest.error();
    }
    const std::string folder = path_of(dir, step_folder_name(step));
    std::vector<std::string> files = {path_of(folder, std::string(kManifestName))};
    for (const ManifestFile& file : manifest->files) {
        files.push_back(path_of(folder, file.name));
    }
    return files;
}

void remove_leftovers(const std::string& dir) {
    const Result<std::vector<std::string>> names = list_names(dir);
    if (!names) {
        return;
    }
    for (const std::string& name : *names) {
        const std::string path = path_of(dir, name);
        if (step_of_aside_name(name, kPartialEnding)) {
            remove_all_of(path);
        } else if (const auto step = step_of_aside_name(name, kReplacedEnding)) {
            // Its writer died before the new one was in its place, or before it removed the old.
            const std::string place = path_of(dir, step_folder_name(*step));
            if (::access(place.c_str(), F_OK) == 0 || ::rename(path.c_str(), place.c_str()) != 0) {
                remove_all_of(path);
            }
        }
    }
}

}  // namespace ddprun::worker
