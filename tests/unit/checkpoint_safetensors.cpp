// The file format: what is written is read again, and nothing that deviates is taken.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "tests/unit/checkpoint_fixture.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::worker::test;

namespace {

const std::map<std::string, std::size_t> kSizes{
    {"F64", 8},     {"F32", 4},         {"F16", 2},         {"BF16", 2}, {"I64", 8}, {"I32", 4},
    {"I16", 2},     {"I8", 1},          {"U8", 1},          {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1},
    {"F8_E5M2", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"U64", 8},  {"U32", 4}, {"U16", 2},
};

std::string file_of(const SafetensorsPlan& plan) {
    std::string file = plan.header;
    for (const TensorView* const tensor : plan.tensors) {
        file += text_of(tensor->bytes);
    }
    return file;
}

std::string size_prefix(std::uint64_t size) {
    std::string bytes;
    for (unsigned i = 0; i < 8; ++i) {
        bytes += static_cast<char>((size >> (8 * i)) & 0xff);
    }
    return bytes;
}

std::string file_with(const std::string& header, std::size_t data_bytes) {
    return size_prefix(header.size()) + header + some_bytes(data_bytes);
}

// The file stands at the end of its own memory, so that the address sanitizer sees a read beyond.
std::string error_of(const std::string& file) {
    const std::vector<char> exact(file.begin(), file.end());
    const Result<std::vector<TensorView>> parsed =
        parse_safetensors(std::as_bytes(std::span(exact)));
    return parsed ? "" : parsed.error().what;
}

// Four bytes of data behind `text`.
std::string header(const std::string& text) {
    return file_with(text, 4);
}

// The same behind the fields of one tensor.
std::string fields(const std::string& text) {
    return header(R"({"a":{)" + text + "}}");
}

const std::string kTensorA = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";

using Cases = std::vector<std::pair<std::string, std::string>>;

void check_errors(const Cases& cases) {
    for (const auto& [file, expected] : cases) {
        INFO(file);
        CHECK_THAT(error_of(file), Catch::Contains(expected));
    }
}

}  // namespace

TEST_CASE("tensors of every type and shape are read as they were written") {
    const std::vector<std::vector<std::int64_t>> shapes{{}, {0}, {3}, {2, 0, 5}, {2, 3}, {1, 1, 7}};
    std::vector<std::string> owned;
    owned.reserve(kSizes.size() * shapes.size());
    std::vector<TensorView> tensors;
    for (const auto& [dtype, size] : kSizes) {
        for (const std::vector<std::int64_t>& shape : shapes) {
            const std::uint64_t bytes = tensor_bytes(dtype, shape).value();
            owned.push_back(some_bytes(bytes, static_cast<unsigned>(owned.size())));
            tensors.push_back(
                tensor("layer." + std::to_string(owned.size()), dtype, shape, owned.back()));
        }
    }
    const Result<SafetensorsPlan> plan = plan_safetensors(tensors);
    REQUIRE(plan);
    CHECK(plan->header.size() % 8 == 0);
    const std::string file = file_of(*plan);
    const Result<std::vector<TensorView>> read = parse_safetensors(bytes_of(file));
    REQUIRE(read);
    CHECK(read->size() == tensors.size());
    std::map<std::string, TensorView> by_name;
    for (const TensorView& one : *read) {
        by_name[one.name] = one;
        CHECK((one.bytes.data() - bytes_of(file).data()) %
                  static_cast<std::ptrdiff_t>(kSizes.at(one.dtype)) ==
              0);
    }
    for (const TensorView& one : tensors) {
        REQUIRE(by_name.count(one.name) == 1);
        CHECK(by_name[one.name].dtype == one.dtype);
        CHECK(by_name[one.name].shape == one.shape);
        CHECK(text_of(by_name[one.name].bytes) == text_of(one.bytes));
    }
}

TEST_CASE("the bytes of a file do not depend on the order of its tensors") {
    const std::string wide = some_bytes(8);
    const std::string thin = some_bytes(2);
    const std::vector<TensorView> one{tensor("b", "F16", {1}, thin), tensor("a", "F16", {1}, thin),
                                      tensor("c", "F64", {}, wide)};
    const std::vector<TensorView> other{one[2], one[1], one[0]};
    const Result<SafetensorsPlan> plan = plan_safetensors(one);
    REQUIRE(plan);
    CHECK(file_of(*plan) == file_of(plan_safetensors(other).value()));
    CHECK(plan->header.substr(8) ==
          R"({"__metadata__":{"format":"pt"},)"
          R"("c":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
          R"("a":{"dtype":"F16","shape":[1],"data_offsets":[8,10]},)"
          R"("b":{"dtype":"F16","shape":[1],"data_offsets":[10,12]}}       )");
}

TEST_CASE("names of any UTF-8 come back, others are refused") {
    const std::vector<std::string> names{"",     "a\"b\\c", "with\nline",          "größe",
                                         "\x01", "🙂",    std::string("a\0b", 3)};
    std::vector<TensorView> tensors;
    for (const std::string& name : names) {
        tensors.push_back(tensor(name, "U8", {0}, ""));
    }
    const std::string file = file_of(plan_safetensors(tensors).value());
    const Result<std::vector<TensorView>> read = parse_safetensors(bytes_of(file));
    REQUIRE(read);
    for (const std::string& name : names) {
        CHECK(std::any_of(read->begin(), read->end(),
                          [&](const TensorView& one) { return one.name == name; }));
    }
    // A stray byte, a cut sequence, an overlong one, a surrogate.
    for (const std::string name : {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80"}) {
        const Result<SafetensorsPlan> refused = plan_safetensors({tensor(name, "U8", {0}, "")});
        REQUIRE_FALSE(refused);
        CHECK(refused.error().what.find("not UTF-8") != std::string::npos);
    }
}

TEST_CASE("tensors that no reader would take are not written") {
    const std::string four = some_bytes(4);
    const std::vector<std::pair<std::vector<TensorView>, std::string>> cases{
        {{tensor("w", "F31", {1}, four)}, R"(tensor "w" type "F31" is not known)"},
        {{tensor("w", "F32", {2}, four)}, R"(tensor "w" has 4 bytes, shape [2] of F32 takes 8)"},
        {{tensor("w", "F32", {}, "")}, R"(tensor "w" has 0 bytes, shape [] of F32 takes 4)"},
        {{tensor("w", "F32", {-1}, four)}, R"(tensor "w" shape [-1] has a negative dimension)"},
        {{tensor("w", "F32", {INT64_MAX, 8}, four)}, "overflows"},
        {{tensor("w", "F32", std::vector<std::int64_t>(65, 1), four)}, "65 dimensions"},
        {{tensor("__metadata__", "F32", {1}, four)}, "reserves"},
        {{tensor("w", "F32", {1}, four), tensor("w", "U8", {4}, four)},
         R"(tensor "w" is given twice)"},
    };
    for (const auto& [tensors, expected] : cases) {
        const Result<SafetensorsPlan> plan = plan_safetensors(tensors);
        INFO(expected);
        REQUIRE_FALSE(plan);
        CHECK_THAT(plan.error().what, Catch::Contains(expected));
    }
}

TEST_CASE("what others write within the format is read") {
    CHECK(error_of(file_with("{}", 0)).empty());
    CHECK(error_of(file_with(R"({"__metadata__":{}})", 0)).empty());
    CHECK(error_of(file_with(R"({"__metadata__":{"format":"pt","a":"b"}}      )", 0)).empty());
    // Fields and tensors in any order, an unaligned header.
    CHECK(error_of(file_with(R"({"b":{"data_offsets":[4,8],"shape":[1],"dtype":"F32"},)"
                             R"("e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
                             R"("a":{"shape":[4],"dtype":"U8","data_offsets":[0,4]}})",
                             8))
              .empty());
}

TEST_CASE("a header that is no header of tensors is refused with the reason") {
    check_errors({
        {"", "0 bytes are too few"},
        {"1234567", "7 bytes are too few"},
        {size_prefix(3) + "{}", "claims 3 bytes, the file has 2"},
        {size_prefix(100'000'001) + "{}", "claims 100000001 bytes, allowed are 100000000"},
        {size_prefix(UINT64_MAX) + "{}", "claims 18446744073709551615 bytes, allowed are"},
        {size_prefix(0) + "{}", "does not begin with {"},
        {header("[]"), "does not begin with {"},
        {header(" {}"), "does not begin with {"},
        {header("\xef\xbb\xbf{}"), "does not begin with {"},
        {header("{"), "not JSON"},
        {header("{}{}"), "not JSON"},
        {header("{} x"), "not JSON"},
        {header("{" + kTensorA + ",}"), "not JSON"},
        {header("{" + kTensorA + std::string("}\0 ", 3)), "is NUL"},
        {header("{\"\xff\":{}}"), "not JSON"},
        {header(R"({"a":1})"), R"(tensor "a" has a number where none belongs)"},
        {header(R"({"a":null})"), "has a null"},
        {header(R"({"a":true})"), "has a true or false"},
        {header(R"({"a":"x"})"), "has a text where none belongs"},
        {header(R"({"a":[]})"), "has a list where none belongs"},
        {header(R"({"__metadata__":{"x":1}})"), "has a number where none belongs"},
        {header(R"({"__metadata__":{"x":{}}})"), "has an object where none belongs"},
        {header(R"({"__metadata__":{"x":"1","x":"2"}})"), R"(the field "x" twice)"},
        {header(R"({"__metadata__":{},"__metadata__":{}})"), "occurs twice"},
        {header("{" + kTensorA + "," + kTensorA + "}"), R"(tensor "a" occurs twice)"},
    });
}

TEST_CASE("a header whose tensors cannot be is refused with the reason") {
    const std::string many_dimensions = [] {
        std::string shape = "1";
        for (int i = 0; i < 64; ++i) {
            shape += ",1";
        }
        return R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
    }();
    check_errors({
        {fields(""), "lacks one of"},
        {fields(R"("dtype":"U8","shape":[4])"), "lacks one of"},
        {fields(R"("dtype":"U8","dtype":"U8")"), R"(the field "dtype" twice)"},
        {fields(R"("type":"U8")"), R"(the unknown field "type")"},
        {fields(R"("dtype":["U8"])"), "has a list where none belongs"},
        {fields(R"("shape":"4")"), "has a text where none belongs"},
        {fields(R"("shape":[[4]])"), "has a list where none belongs"},
        {fields(R"("shape":[{"x":4}])"), "has an object where none belongs"},
        {fields(R"("shape":[-4])"), "negative number -4"},
        {fields(R"("shape":[4.0])"), "no 64-bit integer"},
        {fields(R"("shape":[99999999999999999999])"), "no 64-bit integer"},
        {fields(R"("shape":[9223372036854775808])"), "too large"},
        {header(many_dimensions), "more than 64 dimensions"},
        {fields(R"("dtype":"U8","shape":[4],"data_offsets":[])"), "0 data_offsets"},
        {fields(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "1 data_offsets"},
        {fields(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), "more than 2 data_offsets"},
        {fields(R"("dtype":"X8","shape":[4],"data_offsets":[0,4])"),
         R"(tensor "a": type "X8" is not known)"},
        {fields(R"("dtype":"U8","shape":[5],"data_offsets":[0,4])"),
         R"(tensor "a": data_offsets [0,4] hold 4 bytes, shape [5] of U8 takes 5)"},
        {fields(R"("dtype":"F32","shape":[4],"data_offsets":[0,4])"), "shape [4] of F32 takes 16"},
        {fields(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"),
         "overflows"},
        {fields(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"),
         "overflows"},
        {fields(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"),
         "[4,0] are not within the file's 4 data bytes"},
        {fields(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"),
         "[0,5] are not within the file's 4 data bytes"},
        {fields(R"("dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,4])"),
         "not within"},
        {fields(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "hole or overlap"},
        {fields(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), "1 bytes follow the last"},
        {header("{" + kTensorA + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})"),
         R"(tensor "b": data_offsets [2,4] leave a hole or overlap, the tensor before ends at 4)"},
        {header("{" + kTensorA + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
         "hole or overlap"},
        {header("{}"), "4 bytes follow the last"},
    });
}

TEST_CASE("a header nested a million deep is refused without a crash") {
    for (const std::string open : {"[", "{\"a\":"}) {
        std::string header = "{\"a\":";
        for (int i = 0; i < 1'000'000; ++i) {
            header += open;
        }
        CHECK_THAT(error_of(file_with(header, 0)),
                   Catch::Contains(open == "[" ? "a list where none belongs" : "unknown field"));
    }
}

TEST_CASE("an error about a long or binary name stays one short line") {
    const std::string name(100'000, 'n');
    const std::string error = error_of(file_with("{\"" + name + "\\n\":1}", 0));
    CHECK(error.size() < 200);
    CHECK(error.find('\n') == std::string::npos);
}

TEST_CASE("a file with random damage is refused or its tensors lie within it") {
    const std::string bytes = some_bytes(24);
    const std::string good = file_of(
        plan_safetensors({tensor("a", "F32", {2, 3}, bytes), tensor("b", "U8", {24}, bytes)})
            .value());
    Rng rng(7);
    int taken = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string damaged = good;
        for (std::uint64_t i = rng.below(3) + 1; i > 0; --i) {
            const std::size_t at = rng.below(damaged.size());
            if (rng.chance(1, 2)) {
                damaged[at] = "0123456789[]{},:\"-eEx"[rng.below(21)];
            } else if (rng.chance(1, 2)) {
                damaged.erase(at, rng.below(4));
            } else {
                damaged.insert(at, damaged.substr(rng.below(damaged.size()), rng.below(4)));
            }
        }
        const std::vector<char> exact(damaged.begin(), damaged.end());
        const auto file = std::as_bytes(std::span(exact));
        const Result<std::vector<TensorView>> read = parse_safetensors(file);
        if (!read) {
            CHECK_FALSE(read.error().what.empty());
            continue;
        }
        ++taken;
        std::size_t together = 0;
        for (const TensorView& one : *read) {
            CHECK(one.bytes.data() >= file.data());
            CHECK(one.bytes.data() + one.bytes.size() <= file.data() + file.size());
            CHECK(one.bytes.size() == tensor_bytes(one.dtype, one.shape).value());
            together += one.bytes.size();
        }
        CHECK(together < file.size());
    }
    CHECK(taken > 0);  // changed names, types and data are none of the format's business
}
