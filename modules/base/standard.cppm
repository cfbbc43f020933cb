module;
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
export module tessera.base:standard;

// Names of the standard library that interfaces use, so that an interface needs none of its
// headers: every interface that includes one keeps a copy of it in its BMI, and each importer
// merges all the copies (half of a clean build's time). Functions that the library's own class
// templates befriend (make_shared, the comparisons of containers) cannot be among them: clang 19
// then refuses the class ("cannot befriend target of using declaration"). Bodies include what they
// use.
export namespace std {

using std::byte;
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::nullptr_t;
using std::ptrdiff_t;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
using std::uintptr_t;

using std::array;
using std::basic_string;
using std::basic_string_view;
using std::deque;
using std::function;
using std::initializer_list;
using std::map;
using std::nullopt;
using std::nullopt_t;
using std::optional;
using std::pair;
using std::set;
using std::span;
using std::string;
using std::string_view;
using std::variant;
using std::vector;

using std::default_delete;
using std::enable_shared_from_this;
using std::make_unique;
using std::shared_ptr;
using std::unique_ptr;
using std::weak_ptr;

using std::atomic;
using std::memory_order;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;
using std::mutex;

using std::align_val_t;
using std::exception;
using std::runtime_error;

using std::construct_at;
using std::copy;
using std::copy_backward;
using std::destroy_at;
using std::destroy_n;
using std::equal;
using std::exchange;
using std::find;
using std::forward;
using std::max;
using std::min;
using std::move;
using std::sqrt;
using std::swap;
using std::uninitialized_move_n;

using std::begin;
using std::end;
using std::get;
using std::hash;
using std::tuple_element;
using std::tuple_size;

using std::convertible_to;
using std::integral_constant;
using std::is_same_v;
using std::partial_ordering;
using std::strong_ordering;
using std::weak_ordering;

namespace chrono {
using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using std::chrono::time_point;
}  // namespace chrono

namespace filesystem {
using std::filesystem::path;
}  // namespace filesystem

}  // namespace std
