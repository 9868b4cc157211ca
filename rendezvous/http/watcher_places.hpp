#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace ddprun::rdzv {

/// Places of admitted watchers, so that no machine keeps another one's out. Programs of this
/// machine have `places` of their own; all other machines together have as many, one address at
/// most `of_one_address` of these. Pure.
class WatcherPlaces {
public:
    WatcherPlaces(std::size_t places, std::size_t of_one_address)
        : places_(places), of_one_address_(of_one_address) {}

    /// For one watcher of `address`; empty: this machine's. False: it has none.
    [[nodiscard]] bool take(const std::string& address);
    /// One that take() has given.
    void leave(const std::string& address);

    /// Those that are taken.
    [[nodiscard]] std::size_t size() const { return here_ + elsewhere_; }

private:
    std::size_t places_;
    std::size_t of_one_address_;
    std::size_t here_ = 0;
    std::size_t elsewhere_ = 0;
    std::map<std::string, std::size_t> taken_;  ///< by addresses of other machines
};

}  // namespace ddprun::rdzv
