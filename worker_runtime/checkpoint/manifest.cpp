#include "worker_runtime/checkpoint/manifest.hpp"

#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/utf8.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"

namespace ddprun::worker {

namespace {

using Json = nlohmann::json;

constexpr const char* kFormatName = "ddprun checkpoint";
constexpr int kVersionWithSave = 3;

Error bad_manifest(std::string what) {
    return Error{ErrorCode::BadMessage, std::move(what)};
}

// The last lines of every manifest. Because the checksum covers every byte before them and they are
// compared as a whole, no byte of the text can change unnoticed.
std::string closing(std::string_view before) {
    return fmt::format(",\n  \"checksum\": \"{}\"\n}}\n", xxh3_128_hex(before));
}

// Takes the fields out of one object; the first problem is kept.
class Fields {
public:
    Fields(const Json& object, std::string place, std::optional<Error>& problem)
        : object_(object), place_(std::move(place)), problem_(problem) {
        if (!object_.is_object()) {
            refuse("is not an object");
        }
    }

    std::uint64_t number(const char* key, std::uint64_t least, std::uint64_t most) {
        const Json* const field = find(key);
        if (field == nullptr) {
            return least;
        }
        const auto* const value = field->get_ptr<const Json::number_unsigned_t*>();
        if (value == nullptr || *value < least || *value > most) {
            refuse(fmt::format("has a \"{}\" that is no number from {} to {}", key, least, most));
            return least;
        }
        return *value;
    }

    std::string text(const char* key) {
        const Json* const field = find(key);
        const auto* const value =
            field == nullptr ? nullptr : field->get_ptr<const Json::string_t*>();
        if (field != nullptr && value == nullptr) {
            refuse(fmt::format("has a \"{}\" that is no text", key));
        }
        return value == nullptr ? std::string() : *value;
    }

    // The field, which must have the type of `example`; `example`, an empty value, if it is absent.
    Json container(const char* key, const Json& example) {
        const Json* const field = find(key);
        if (field != nullptr && field->type() != example.type()) {
            refuse(fmt::format("has a \"{}\" that is not a JSON {}", key, example.type_name()));
            return example;
        }
        return field == nullptr ? example : *field;
    }

    // To be called last: refuses fields that no call has asked for.
    void finish() {
        if (object_.is_object() && object_.size() > taken_) {
            refuse("has unknown fields");
        }
    }

    void refuse(const std::string& why) {
        if (!problem_) {
            problem_ = bad_manifest(place_ + " " + why);
        }
    }

private:
    const Json* find(const char* key) {
        ++taken_;
        const auto found = object_.find(key);
        if (found == object_.end()) {
            refuse(fmt::format("lacks \"{}\"", key));
            return nullptr;
        }
        return &*found;
    }

    const Json& object_;
    std::string place_;
    std::optional<Error>& problem_;
    std::size_t taken_ = 0;
};

// A name that cannot lead out of the checkpoint's folder or to its manifest.
bool is_plain_name(const std::string& name) {
    constexpr std::string_view kAllowed =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return !name.empty() && name.size() <= kManifestFileNameBytesMax && name.front() != '.' &&
           name.find_first_not_of(kAllowed) == std::string::npos && name != kManifestName;
}

bool is_checksum(const std::string& text) {
    return text.size() == kXxh3HexDigits &&
           text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void read_files(const Json& list, Manifest& manifest, std::optional<Error>& problem) {
    if (list.size() > kManifestFilesMax) {
        problem = bad_manifest(fmt::format("the manifest has {} files, allowed are {}", list.size(),
                                           kManifestFilesMax));
        return;
    }
    std::set<std::string> names;
    std::uint64_t bytes = 0;
    constexpr std::uint64_t kBytesMax = std::numeric_limits<std::int64_t>::max();
    for (const Json& object : list) {
        Fields fields(object, "a file of the manifest", problem);
        ManifestFile& file = manifest.files.emplace_back();
        file.name = fields.text("name");
        file.size = fields.number("size", 0, kBytesMax - bytes);
        bytes += file.size;
        file.xxh3_128 = fields.text("xxh3_128");
        fields.finish();
        if (!is_plain_name(file.name)) {
            fields.refuse(
                fmt::format("has the name {}, which is not allowed", in_quotes(file.name)));
        } else if (!names.insert(file.name).second) {
            fields.refuse(fmt::format("is listed twice: {}", file.name));
        } else if (!is_checksum(file.xxh3_128)) {
            fields.refuse(
                fmt::format("has the checksum {}, which is none", in_quotes(file.xxh3_128)));
        }
    }
}

void read_values(const Json& object, CheckpointInfo& info, std::optional<Error>& problem) {
    for (const auto& [key, value] : object.items()) {
        const auto* const text = value.get_ptr<const Json::string_t*>();
        if (text == nullptr) {
            problem =
                bad_manifest(fmt::format("value {} of the manifest is no text", in_quotes(key)));
            return;
        }
        info.values[key] = *text;
    }
}

}  // namespace

Result<std::string> format_manifest(const Manifest& manifest) {
    const CheckpointInfo& info = manifest.info;
    if (info.world_size < 1) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("world size {} is none; give 1 or more", info.world_size)};
    }
    if (info.step < 0) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("step {} is none; give 0 or more", info.step)};
    }
    if (manifest.files.size() > kManifestFilesMax) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("a checkpoint has {} files, allowed are {}", manifest.files.size(),
                                 kManifestFilesMax)};
    }
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
    for (const auto& [key, value] : info.values) {
        if (!is_utf8(key) || !is_utf8(value)) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("value {} is not UTF-8; store bytes as a tensor or in base64",
                                     in_quotes(key))};
        }
        values[key] = value;
    }
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const ManifestFile& file : manifest.files) {
        files.push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.xxh3_128}});
    }
    nlohmann::ordered_json whole = {
        {"format", kFormatName}, {"version", kVersionWithSave - 1}, {"step", info.step}};
    if (info.save > 0) {
        whole["version"] = kVersionWithSave;
        whole["save"] = info.save;
    }
    whole["generation"] = info.generation.value();
    whole["world_size"] = info.world_size;
    whole["values"] = std::move(values);
    whole["files"] = std::move(files);
    std::string text = whole.dump(2);
    text.resize(text.size() - std::string_view("\n}").size());
    text += closing(text);
    if (text.size() > kManifestBytesMax) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("the manifest takes {} bytes, allowed are {}; store large values "
                                 "as tensors",
                                 text.size(), kManifestBytesMax)};
    }
    return text;
}

Result<Manifest> parse_manifest(std::string_view text) {
    if (text.size() > kManifestBytesMax) {
        return bad_manifest(fmt::format("the manifest has {} bytes, allowed are {}", text.size(),
                                        kManifestBytesMax));
    }
    const std::size_t closing_bytes = closing({}).size();
    if (text.size() < closing_bytes) {
        return bad_manifest(fmt::format("the manifest has only {} bytes", text.size()));
    }
    const std::size_t covered = text.size() - closing_bytes;
    if (text.substr(covered) != closing(text.substr(0, covered))) {
        return bad_manifest("the manifest's own checksum is wrong or missing");
    }
    const Result<Json> json = parse_json(text, kManifestDepthMax);
    if (!json) {
        return bad_manifest("the manifest cannot be read: " + json.error().what);
    }
    std::optional<Error> problem;
    Manifest manifest;
    Fields fields(*json, "the manifest", problem);
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    if (fields.text("format") != kFormatName) {
        fields.refuse(fmt::format("does not have the format \"{}\"", kFormatName));
    }
    const std::uint64_t version = fields.number("version", 1, kMost);
    if (version > kManifestVersion) {
        fields.refuse(
            fmt::format("is of version {}, this build of ddprun reads 1 to {}; use the "
                        "build that wrote it, or a newer one",
                        version, kManifestVersion));
    }
    manifest.info.step = static_cast<std::int64_t>(fields.number("step", 0, kMost / 2));
    manifest.info.save = version >= kVersionWithSave ? fields.number("save", 1, kMost) : 0;
    manifest.info.generation = Generation(fields.number("generation", 0, kMost));
    manifest.info.world_size = static_cast<int>(fields.number(
        "world_size", 1, static_cast<std::uint64_t>(std::numeric_limits<int>::max())));
    read_values(fields.container("values", Json::object()), manifest.info, problem);
    read_files(fields.container("files", Json::array()), manifest, problem);
    (void)fields.text("checksum");
    fields.finish();
    if (problem) {
        return *std::move(problem);
    }
    return manifest;
}

}  // namespace ddprun::worker
