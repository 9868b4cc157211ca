#include "worker_runtime/python/native/checkpoint_library.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/layout.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"
#include "worker_runtime/checkpoint/verification.hpp"
#include "worker_runtime/python/native/arguments.hpp"

namespace worker = ddprun::worker;
using ddprun::Result;
using ddprun::python::bad;
using ddprun::python::fill_in;
using ddprun::python::guarded;
using ddprun::python::list_of;
using ddprun::python::manifest_of;
using ddprun::python::plain_name;
using ddprun::python::put;
using ddprun::python::text_of;
using ddprun::python::texts_of;
using ddprun::python::views_of;

namespace {

Result<worker::PartialCheckpoint> partial_of(const DdprunPartial* partial) {
    if (partial == nullptr) {
        return bad("no partial checkpoint");
    }
    const Result<std::string> dir = text_of(partial->dir);
    if (!dir) {
        return dir.error();
    }
    std::string name(partial->name, ::strnlen(partial->name, sizeof(partial->name)));
    // A name that leads elsewhere is none.
    if (worker::step_of_aside_name(name, worker::kPartialEnding) != partial->step) {
        return bad("a name that no partial checkpoint of this step has");
    }
    return worker::PartialCheckpoint{.dir = *dir, .name = std::move(name), .step = partial->step};
}

worker::PublishOptions options_of(const DdprunManifest& given) {
    worker::PublishOptions options{.keep = given.keep, .keep_every = given.keep_every};
    if (given.is_isolated != nullptr) {
        options.is_isolated = [ask = given.is_isolated] { return ask() != 0; };
    }
    if (given.on_warning != nullptr) {
        options.on_warning = [warn = given.on_warning](const std::string& text) {
            warn(text.c_str());
        };
    }
    return options;
}

Result<void> publish(const DdprunPartial* partial, const DdprunManifest* given) {
    const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
    if (!checkpoint) {
        return checkpoint.error();
    }
    const Result<worker::Manifest> manifest = manifest_of(checkpoint->step, given);
    if (!manifest) {
        worker::abandon(*checkpoint);
        return manifest.error();
    }
    const Result<std::string> path = worker::publish(*checkpoint, *manifest, options_of(*given));
    return path ? Result<void>() : Result<void>(path.error());
}

}  // namespace

extern "C" {

std::int32_t ddprun_checkpoint_abi() {
    return kDdprunCheckpointAbi;
}

void ddprun_checkpoint_ring(std::uint32_t* bell) {
    std::atomic_ref<std::uint32_t>(*bell).fetch_add(1);
    ::syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::int32_t ddprun_checkpoint_begin_probe(DdprunPartial* partial, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> dir = text_of(partial == nullptr ? nullptr : partial->dir);
        if (!dir) {
            return dir.error();
        }
        const Result<worker::PartialCheckpoint> begun = worker::begin_probe(*dir);
        if (!begun) {
            return begun.error();
        }
        partial->step = begun->step;
        put(partial->name, begun->name);
        return {};
    });
}

std::int32_t ddprun_checkpoint_probe(const DdprunPartial* partial, const char* name,
                                     DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> place = partial_of(partial);
        const Result<std::string> file = text_of(name);
        if (!place || !file) {
            return place ? file.error() : place.error();
        }
        return worker::probe(*place, *file);
    });
}

std::int32_t ddprun_checkpoint_begin(DdprunPartial* partial, std::uint64_t bytes,
                                     DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        if (partial == nullptr || partial->step < 0) {
            return bad("no partial checkpoint, or a step below 0");
        }
        const Result<std::string> dir = text_of(partial->dir);
        if (!dir) {
            return dir.error();
        }
        const Result<worker::PartialCheckpoint> begun =
            worker::begin_checkpoint(*dir, partial->step, bytes);
        if (!begun) {
            return begun.error();
        }
        put(partial->name, begun->name);
        return {};
    });
}

std::int32_t ddprun_checkpoint_file_name(const char* kind, std::int32_t number, std::int32_t count,
                                         DdprunFile* file, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> text = text_of(kind, worker::kManifestFileNameBytesMax / 2);
        if (!text || file == nullptr) {
            return text ? bad("no file") : text.error();
        }
        put(file->name, worker::tensor_file_name(*text, number, count));
        return {};
    });
}

std::int32_t ddprun_checkpoint_write_tensors(const DdprunPartial* partial, const char* prefix,
                                             const DdprunTensor* tensors, std::uint64_t count,
                                             DdprunFile* file, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
        const Result<std::string> before = text_of(prefix);
        const Result<std::vector<worker::TensorView>> views = views_of(tensors, count);
        const Result<std::string> name = plain_name(file);
        if (!checkpoint || !before) {
            return checkpoint ? before.error() : checkpoint.error();
        }
        if (!views || !name) {
            return views ? name.error() : views.error();
        }
        return fill_in(worker::write_tensors(*checkpoint, *name, *before, *views), file);
    });
}

std::int32_t ddprun_checkpoint_write_model_index(const DdprunPartial* partial,
                                                 const DdprunText* files, std::uint64_t count,
                                                 std::uint64_t bytes, DdprunFile* file,
                                                 DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
        const Result<std::map<std::string, std::string>> places = texts_of(files, count);
        if (!checkpoint || !places) {
            return checkpoint ? places.error() : checkpoint.error();
        }
        if (file == nullptr) {
            return bad("no file");
        }
        return fill_in(worker::write_model_index(*checkpoint, *places, bytes), file);
    });
}

std::int32_t ddprun_checkpoint_publish(const DdprunPartial* partial, const DdprunManifest* manifest,
                                       DdprunError* error) {
    return guarded(error, [&] { return publish(partial, manifest); });
}

void ddprun_checkpoint_abandon(const DdprunPartial* partial) {
    (void)guarded(nullptr, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
        if (checkpoint) {
            worker::abandon(*checkpoint);
        }
        return {};
    });
}

std::int32_t ddprun_checkpoint_list(const char* dir, std::int64_t* steps, std::uint64_t capacity,
                                    std::uint64_t* count, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (!path || count == nullptr || (steps == nullptr && capacity > 0)) {
            return path ? bad("no place for steps") : path.error();
        }
        const Result<std::vector<std::int64_t>> found = worker::list_checkpoints(*path);
        if (!found) {
            return found.error();
        }
        *count = found->size();
        std::copy_n(found->begin(), std::min<std::uint64_t>(capacity, found->size()), steps);
        return {};
    });
}

std::int32_t ddprun_checkpoint_save_of(const char* dir, std::int64_t step, std::uint64_t* save,
                                       DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (!path || save == nullptr || step < 0) {
            return path ? bad("no step, or no place for a number") : path.error();
        }
        *save = worker::save_of_checkpoint(*path, step);
        return {};
    });
}

void ddprun_checkpoint_remove_leftovers(const char* dir) {
    (void)guarded(nullptr, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (path) {
            worker::remove_leftovers(*path);
        }
        return {};
    });
}

std::int32_t ddprun_checkpoint_verify(const char* dir, std::int64_t step, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        return path ? worker::verify_checkpoint(*path, step, [](std::uint64_t /*bytes*/) {})
                    : path.error();
    });
}

std::int32_t ddprun_checkpoint_share_out(const std::uint64_t* sizes, std::uint64_t count,
                                         std::int32_t world_size, std::int32_t* ranks,
                                         DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::span<const std::uint64_t>> list = list_of(sizes, count);
        if (!list || world_size < 1 || (ranks == nullptr && count > 0)) {
            return list ? bad("a world size below 1, or no place for ranks") : list.error();
        }
        const std::vector<int> shared = worker::share_out({list->begin(), list->end()}, world_size);
        std::copy(shared.begin(), shared.end(), ranks);
        return {};
    });
}

std::int32_t ddprun_checkpoint_check_parts(const DdprunTensor* parts, const std::int32_t* ranks,
                                           std::uint64_t count, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        if (parts == nullptr || count == 0 || ranks == nullptr) {
            return bad("no parts, or no ranks of them");
        }
        const Result<std::vector<worker::TensorView>> views = views_of(parts, count);
        if (!views) {
            return views.error();
        }
        std::vector<worker::RankPart> all;
        for (std::size_t i = 0; i < count; ++i) {
            const worker::TensorView& view = (*views)[i];
            worker::Box box = worker::whole_box(view.shape);
            if (view.layout) {
                box.offsets = view.layout->offsets;
            }
            all.push_back(
                {.rank = ranks[i],
                 .dtype = view.dtype,
                 .global_shape = view.layout ? view.layout->global_shape : view.shape,
                 .box = std::move(box),
                 .mesh_dimension = view.layout ? view.layout->mesh_dimension : std::string()});
        }
        return worker::check_parts(views->front().name, all);
    });
}

std::int32_t ddprun_checkpoint_open(const char* dir, std::int64_t step, std::uint64_t reader,
                                    std::uint64_t readers, DdprunOpen** opened, DdprunInfo* info,
                                    DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (!path) {
            return path.error();
        }
        if (opened == nullptr || info == nullptr || reader >= readers || step < 0) {
            return bad("no reader of so many, or a step below 0");
        }
        Result<worker::LoadedCheckpoint> loaded =
            worker::read_checkpoint(*path, step, {.reader = reader, .readers = readers});
        if (!loaded) {
            return loaded.error();
        }
        ddprun::python::hand_out(*std::move(loaded), opened, info);
        return {};
    });
}

std::int32_t ddprun_checkpoint_value(const DdprunOpen* opened, std::uint64_t index,
                                     DdprunText* text) {
    if (opened == nullptr || text == nullptr || index >= opened->values.size()) {
        return 1;
    }
    const auto& [key, value] = *opened->values[index];
    *text = {.key = key.c_str(), .text = value.c_str()};
    return 0;
}

std::int32_t ddprun_checkpoint_tensor(const DdprunOpen* opened, std::uint64_t index,
                                      DdprunStored* tensor) {
    if (opened == nullptr || tensor == nullptr || index >= opened->tensors.size()) {
        return 1;
    }
    const auto& [name, stored] = *opened->tensors[index];
    *tensor = {.name = name.c_str(),
               .dtype = stored.dtype.c_str(),
               .dimensions = stored.shape.size(),
               .shape = stored.shape.data(),
               .part_count = stored.parts.size()};
    return 0;
}

std::int32_t ddprun_checkpoint_part(const DdprunOpen* opened, std::uint64_t tensor,
                                    std::uint64_t index, DdprunPart* part) {
    if (opened == nullptr || part == nullptr || tensor >= opened->tensors.size() ||
        index >= opened->tensors[tensor]->second.parts.size()) {
        return 1;
    }
    const worker::StoredTensor::Part& stored = opened->tensors[tensor]->second.parts[index];
    *part = {.offsets = stored.box.offsets.data(),
             .lengths = stored.box.lengths.data(),
             .bytes = stored.bytes.data(),
             .size = stored.bytes.size()};
    return 0;
}

void ddprun_checkpoint_close(DdprunOpen* opened) {
    const std::unique_ptr<DdprunOpen> owned(opened);
}

}  // extern "C"
