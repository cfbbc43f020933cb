export module tessera.base:reflect;

import :standard;

// The fields of an aggregate: how many, their types and names, without macros. Boost.PFR reads
// names from Boost 1.84 on; Debian 12 has 1.81.
export namespace tessera {

namespace reflect {

template <class A>
struct AnyOther {  // converts to every type but A
  template <class T>
    requires(!__is_same(T, A))
  constexpr operator T() const;  // NOLINT(google-explicit-constructor)
};

/// Fields of an aggregate: the most values that it can be initialised with.
template <class A, class... Known>
consteval int count_fields() {
  if constexpr (requires { A{Known{}..., AnyOther<A>{}}; }) {
    return count_fields<A, Known..., AnyOther<A>>();
  } else {
    return static_cast<int>(sizeof...(Known));
  }
}

/// Fields that visit() can name.
inline constexpr int most_fields = 12;

/// f(field...).
template <class A, class F>
[[gnu::always_inline]] constexpr decltype(auto) visit(A& x, F&& f) {
  constexpr int count = count_fields<__remove_const(A)>();
  static_assert(count > 0 && count <= most_fields, "an aggregate of 1 to 12 fields is expected");
  if constexpr (count == 1) {
    auto& [a] = x;
    return f(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = x;
    return f(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = x;
    return f(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = x;
    return f(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = x;
    return f(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, g] = x;
    return f(a, b, c, d, e, g);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, g, h] = x;
    return f(a, b, c, d, e, g, h);
  } else if constexpr (count == 8) {
    auto& [a, b, c, d, e, g, h, i] = x;
    return f(a, b, c, d, e, g, h, i);
  } else if constexpr (count == 9) {
    auto& [a, b, c, d, e, g, h, i, j] = x;
    return f(a, b, c, d, e, g, h, i, j);
  } else if constexpr (count == 10) {
    auto& [a, b, c, d, e, g, h, i, j, k] = x;
    return f(a, b, c, d, e, g, h, i, j, k);
  } else if constexpr (count == 11) {
    auto& [a, b, c, d, e, g, h, i, j, k, l] = x;
    return f(a, b, c, d, e, g, h, i, j, k, l);
  } else {
    auto& [a, b, c, d, e, g, h, i, j, k, l, m] = x;
    return f(a, b, c, d, e, g, h, i, j, k, l, m);
  }
}

/// A list of types.
template <class... T>
struct Types {};

/// A list of numbers.
template <std::size_t... I>
struct Indices {};
/// Numbers of another type as Indices.
template <class T, T... I>
struct IndexSequence {
  using Result = Indices<static_cast<std::size_t>(I)...>;
};
/// 0, 1, ... as many as there are types.
template <class... T>
consteval auto indices_of(Types<T...>) {
  return typename __make_integer_seq<IndexSequence, int, sizeof...(T)>::Result{};
}

/// Types<...> of an aggregate's fields.
template <class A>
using FieldTypes =
    decltype(visit(*static_cast<A*>(nullptr), []<class... T>(T&...) { return Types<T...>{}; }));

// A field's name is read from the compiler's text of a pointer to it. The object pointed into is
// declared only: nothing but its address is used.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
template <class A>
struct Holder {
  const A fields;
};
template <class A>
extern const Holder<A> declared;
#pragma clang diagnostic pop

/// A pointer as a value that a template takes.
template <class T>
struct Pointer {
  const T* to;
};

/// The name of the field that P points to, from the compiler's text of it.
template <auto P>
consteval std::string_view name_of_pointer() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;  // "... [P = ...{&declared.fields.dim}]"
  constexpr std::size_t begin = text.rfind('.') + 1;
  constexpr std::size_t end = text.find_first_of("}]", begin);
  return text.substr(begin, end - begin);
}

template <class... T>
struct Pointers {
  template <std::size_t I>
  consteval auto get() const = delete;
};
template <class First, class... Rest>
struct Pointers<First, Rest...> {
  const First* first;
  Pointers<Rest...> rest;

  template <std::size_t I>
  consteval auto get() const {
    if constexpr (I == 0) {
      return Pointer<First>{first};
    } else {
      return rest.template get<I - 1>();
    }
  }
};

template <class First, class... Rest>
consteval Pointers<First, Rest...> pointers_to(const First& first, const Rest&... rest) {
  if constexpr (sizeof...(Rest) == 0) {
    return {&first, {}};
  } else {
    return {&first, pointers_to(rest...)};
  }
}

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
template <class A, std::size_t I>
consteval std::string_view field_name() {
  constexpr auto pointers =
      visit(declared<A>.fields, [](const auto&... field) { return pointers_to(field...); });
  return name_of_pointer<pointers.template get<I>()>();
}
#pragma clang diagnostic pop

/// "tessera::functions::Silu".
template <class T>
consteval std::string_view type_name() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;  // "... [T = tessera::functions::Silu]"
  constexpr std::size_t begin = text.find("T = ") + 4;
  return text.substr(begin, text.rfind(']') - begin);
}

// An enumerator's name is read from the compiler's text of it: "... [V = tessera::Mode::linear]",
// or "... [V = (tessera::Mode)7]" where there is none, or "... [V = (anonymous
// namespace)::Mode::linear]".
template <auto V>
consteval std::string_view enumerator_name() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;
  constexpr std::size_t begin = text.rfind("V = ") + 4;
  constexpr std::string_view value = text.substr(begin, text.rfind(']') - begin);
  constexpr char first = value[value.rfind(')') + 1];  // rfind: npos + 1 is 0
  const bool is_number = first == '-' || (first >= '0' && first <= '9');
  return is_number ? std::string_view() : value.substr(value.rfind(':') + 1);
}

template <class E, int first = 0>
consteval int count_enumerators() {
  if constexpr (enumerator_name<static_cast<E>(first)>().empty()) {
    return first;
  } else {
    return count_enumerators<E, first + 1>();
  }
}

/// The enumerators of an enumeration that counts from 0 without gaps.
template <class E>
struct Enumerators {
  static constexpr std::size_t count = count_enumerators<E>();

  template <std::size_t... I>
  static consteval std::array<std::string_view, count> make_names(Indices<I...>) {
    return {enumerator_name<static_cast<E>(I)>()...};
  }
  static constexpr std::array<std::string_view, count> names =
      make_names(typename __make_integer_seq<IndexSequence, int, count>::Result{});

  static consteval std::size_t joined_size() {
    std::size_t size = count - 1;
    for (const std::string_view name : names) {
      size += name.size();
    }
    return size;
  }
  static consteval std::array<char, joined_size()> join() {
    std::array<char, joined_size()> all{};
    std::size_t at = 0;
    for (const std::string_view name : names) {
      if (at > 0) {
        all[at++] = '/';
      }
      for (const char c : name) {
        all[at++] = c;
      }
    }
    return all;
  }
  static constexpr std::array<char, joined_size()> joined_characters = join();
  /// "nearest/linear".
  static constexpr std::string_view joined{joined_characters.data(), joined_characters.size()};
};

/// The enumerator's name; empty where the value is none of the enumerators.
template <class E>
constexpr std::string_view name_of_enumerator(E value) {
  const auto at = static_cast<std::size_t>(value);
  return at < Enumerators<E>::count ? Enumerators<E>::names[at] : std::string_view();
}

/// The enumerator of this name.
template <class E>
constexpr std::optional<E> enumerator_of(std::string_view name) {
  for (std::size_t i = 0; i < Enumerators<E>::count; ++i) {
    if (Enumerators<E>::names[i] == name) {
      return static_cast<E>(i);
    }
  }
  return std::nullopt;
}

}  // namespace reflect

}  // namespace tessera
