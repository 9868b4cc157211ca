#pragma once

#include <string>

#include "base/limits.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::launcher {

/// The places that show what this node's workers are made of.
struct FingerprintPlaces {
    std::string program;      ///< the file whose content is the program; empty: not known
    std::string python;       ///< the interpreter that runs it; empty: none does
    std::string python_path;  ///< as $PYTHONPATH
    std::string home;
    std::string driver = "/sys/module/nvidia/version";
};

/// Reads a few small files and the ends of the program; starts nothing. A part that is not found
/// there stays empty.
[[nodiscard]] rdzv::Fingerprint read_fingerprint(const FingerprintPlaces& places,
                                                 const Limits& limits);

/// The hash of this file's content, as in its fingerprint; empty: the file cannot be read.
[[nodiscard]] std::string hash_of_program(const std::string& path, const Limits& limits);

}  // namespace ddprun::launcher
