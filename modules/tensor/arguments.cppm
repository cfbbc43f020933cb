export module tessera.tensor:arguments;

import tessera.base;
import tessera.placement;
import :attributes;
import :number;
import :random;
import :spec;

// An operator's arguments that are not tensors. Each operator declares them once, as an aggregate:
//     struct SoftmaxArgs { std::int64_t dim; };
//     struct LayerNormArgs { Dynamic<double> eps; };
// The schema's text, the cache key, equality, printing, parsing and JSON follow from it.
export namespace tessera {

/// An argument that no recording follows.
struct UntracedArgument {};
/// How the host computes with values of an argument's type.
template <class T>
struct TracedType {
  using type = UntracedArgument;
};
template <>
struct TracedType<double> {
  using type = Number;
};
template <>
struct TracedType<std::int64_t> {
  using type = Count;
};

/// An argument that may change from call to call without changing shapes or layouts: a scalar, a
/// learning rate, a step, a random offset. It is not part of the key under which the distributed
/// path is cached. T: double, std::int64_t or RandomNumbers. While a step is recorded, a Number or
/// a Count brings along where it comes from; what a kernel reads is the value.
template <class T>
struct Dynamic {
  using Traced = typename TracedType<T>::type;
  T value{};
  SourceId source = 0;

  constexpr Dynamic() = default;
  constexpr Dynamic(T v) : value(v) {}  // NOLINT(google-explicit-constructor)
  constexpr Dynamic(const Traced& v)    // NOLINT(google-explicit-constructor)
    requires(!std::is_same_v<Traced, UntracedArgument>)
      : value(v.untraced_value()), source(v.source()) {}
  constexpr operator T() const { return value; }  // NOLINT(google-explicit-constructor)
  constexpr operator Traced() const               // NOLINT(google-explicit-constructor)
    requires(!std::is_same_v<Traced, UntracedArgument>)
  {
    return {value, source};
  }
};

/// Ranks that a call communicates with, in the order of their communicator, and the name of that:
/// ranks may have several communicators.
struct CallGroup {
  std::vector<int> ranks = {};
  std::string name = {};

  /// Whether there is nobody else to communicate with.
  bool is_alone() const { return ranks.size() < 2; }
};
bool operator==(const CallGroup& a, const CallGroup& b);
bool operator<(const CallGroup& a, const CallGroup& b);
/// "ranks 0 1", "ranks 0 1 named data".
std::string to_string(const CallGroup& group);

/// A Spec as an argument; null where the operator allows it ("none").
struct SpecArgument {
  SpecHandle spec;

  inline const Spec& operator*() const { return *spec; }
  inline const Spec* operator->() const { return spec.get(); }
  inline explicit operator bool() const { return spec != nullptr; }
};

/// One argument's value without its C++ type. The text is of a dtype, a Spec, a group of ranks, an
/// enumerator or a name.
using ArgumentValue = std::variant<std::int64_t, bool, double, Dims, std::string>;

/// How one type of argument is stored in a word, and what it is outside of the process.
/// Specialisations: std::int64_t, bool, double, DType, ReduceOp, SpecArgument; others (a group of
/// ranks, an enumeration) may be added where the type is declared:
///     static constexpr std::string_view name;            // in schemas
///     static std::int64_t word(T);     static T from_word(std::int64_t);
///     static ArgumentValue value(T);   static T from_value(const ArgumentValue&);  // may fail
template <class T>
struct ArgumentType;

/// The type's name in an error: "value of type int: got 'x'".
[[noreturn]] void wrong_argument(std::string_view type, const ArgumentValue& value);
/// The value's text; empty where it is none.
std::string_view argument_text(const ArgumentValue& value);

template <>
struct ArgumentType<std::int64_t> {
  static constexpr std::string_view name = "int";
  static inline std::int64_t word(std::int64_t v) { return v; }
  static inline std::int64_t from_word(std::int64_t w) { return w; }
  static inline ArgumentValue value(std::int64_t v) { return v; }
  static std::int64_t from_value(const ArgumentValue& v);
};

template <>
struct ArgumentType<bool> {
  static constexpr std::string_view name = "bool";
  static inline std::int64_t word(bool v) { return v ? 1 : 0; }
  static inline bool from_word(std::int64_t w) { return w != 0; }
  static inline ArgumentValue value(bool v) { return v; }
  static bool from_value(const ArgumentValue& v);
};

template <>
struct ArgumentType<double> {
  static constexpr std::string_view name = "float";
  static inline std::int64_t word(double v) { return __builtin_bit_cast(std::int64_t, v); }
  static inline double from_word(std::int64_t w) { return __builtin_bit_cast(double, w); }
  static inline ArgumentValue value(double v) { return v; }
  static double from_value(const ArgumentValue& v);
};

template <>
struct ArgumentType<DType> {
  static constexpr std::string_view name = "dtype";
  static inline std::int64_t word(DType v) { return static_cast<std::int64_t>(v); }
  static inline DType from_word(std::int64_t w) { return static_cast<DType>(w); }
  static ArgumentValue value(DType v);
  static DType from_value(const ArgumentValue& v);
};

/// Outside of the process a device is its name: "cpu", "adversary:0".
template <>
struct ArgumentType<Device> {
  static constexpr std::string_view name = "device";
  static inline std::int64_t word(Device v) {
    return static_cast<std::int64_t>(v.type) | (static_cast<std::int64_t>(v.index) << 8);
  }
  static inline Device from_word(std::int64_t w) {
    return {static_cast<DeviceType>(w & 0xff), static_cast<std::int8_t>(w >> 8)};
  }
  static ArgumentValue value(Device v);
  static Device from_value(const ArgumentValue& v);
};

template <>
struct ArgumentType<ReduceOp> {
  static constexpr std::string_view name = "reduce_op";
  static inline std::int64_t word(ReduceOp v) { return static_cast<std::int64_t>(v); }
  static inline ReduceOp from_word(std::int64_t w) { return static_cast<ReduceOp>(w); }
  static ArgumentValue value(ReduceOp v);
  static ReduceOp from_value(const ArgumentValue& v);
};

/// An enumeration of an operator's own, which counts from 0. Outside of the process it is the
/// enumerator's name, so that a stored text keeps its meaning when enumerators are added or
/// reordered; numbers are refused.
template <class T>
  requires(__is_enum(T))
struct ArgumentType<T> {
  static constexpr std::string_view name = reflect::Enumerators<T>::joined;
  static inline std::int64_t word(T v) { return static_cast<std::int64_t>(v); }
  static inline T from_word(std::int64_t w) { return static_cast<T>(w); }
  static inline ArgumentValue value(T v) { return std::string(reflect::name_of_enumerator(v)); }
  static inline T from_value(const ArgumentValue& v) {
    const std::optional<T> found = reflect::enumerator_of<T>(argument_text(v));
    if (!found) {
      wrong_argument(name, v);
    }
    return *found;
  }
};

template <>
struct ArgumentType<SpecArgument> {
  static constexpr std::string_view name = "spec";
  static inline std::int64_t word(const SpecArgument& v) {
    return reinterpret_cast<std::int64_t>(v.spec.get());
  }
  static inline SpecArgument from_word(std::int64_t w) {
    const auto* const spec = reinterpret_cast<const Spec*>(w);
    return {spec == nullptr ? SpecHandle() : spec->handle()};
  }
  static ArgumentValue value(const SpecArgument& v);
  static SpecArgument from_value(const ArgumentValue& v);
};

/// One argument of an operator: "dim: int", "lr: dynamic float".
struct ArgumentField {
  std::string_view name;
  std::string_view type;
  bool dynamic = false;
};

/// "dim: int", "lr: dynamic float".
std::string to_string(const ArgumentField& field);

/// How a field is stored: in one word, a static or a dynamic one; Dims in one word for their number
/// and one for each.
template <class T>
struct ArgumentStorage {
  using Type = ArgumentType<T>;
  static constexpr bool dynamic = false;
};
template <class T>
struct ArgumentStorage<Dynamic<T>> {
  using Type = ArgumentType<T>;
  static constexpr bool dynamic = true;
};

template <>
struct ArgumentType<Dims> {
  static constexpr std::string_view name = "dims";
  static inline ArgumentValue value(const Dims& v) { return v; }
  static Dims from_value(const ArgumentValue& v);
};

/// Always dynamic.
template <>
struct ArgumentType<RandomNumbers> {
  static constexpr std::string_view name = "random";
  static constexpr int words = 5;
  static inline void write(const RandomNumbers& v, std::int64_t* to) {
    const std::uint64_t all[words] = {v.seed, v.stream, v.offset, v.run, v.stride};
    for (int i = 0; i < words; ++i) {
      to[i] = static_cast<std::int64_t>(all[i]);
    }
  }
  static inline RandomNumbers read(const std::int64_t* from) {
    const auto word = [from](int i) { return static_cast<std::uint64_t>(from[i]); };
    return {word(0), word(1), word(2), word(3), word(4)};
  }
  /// "seed=1 stream=2 offset=3 run=0 stride=0".
  static ArgumentValue value(const RandomNumbers& v);
  static RandomNumbers from_value(const ArgumentValue& v);
};

/// Arguments of a call as words in place.
struct ArgumentWords {
  template <class T>
  [[gnu::always_inline]] static inline void write(Attributes& attributes, const T& field) {
    using Storage = ArgumentStorage<T>;
    Attributes::Words& to = attributes.words_;
    if constexpr (std::is_same_v<T, Dims>) {
      attributes.check_room(field.size() + 1);
      to.fixed[to.fixed_count++] = field.size();
      for (const std::int64_t d : field) {
        to.fixed[to.fixed_count++] = d;
      }
    } else if constexpr (std::is_same_v<T, Dynamic<RandomNumbers>>) {
      Storage::Type::write(field.value, to.dynamic + to.dynamic_count);
      to.dynamic_count += Storage::Type::words;
    } else if constexpr (Storage::dynamic) {
      if (field.source != 0) [[unlikely]] {
        attributes.trace(to.dynamic_count, field.source);
      }
      to.dynamic[to.dynamic_count++] = Storage::Type::word(field.value);
    } else {
      attributes.check_room(1);
      if constexpr (std::is_same_v<T, SpecArgument>) {
        if (field) {
          to.specs |= 1U << to.fixed_count;
        }
      }
      to.fixed[to.fixed_count++] = Storage::Type::word(field);
    }
  }

  const std::int64_t* fixed;
  const std::int64_t* dynamic;
  const Attributes* traced = nullptr;  // with sources of dynamic arguments

  template <class T>
  [[gnu::always_inline]] inline T read() {
    using Storage = ArgumentStorage<T>;
    if constexpr (std::is_same_v<T, Dims>) {
      const auto count = static_cast<std::size_t>(*fixed++);
      const Dims dims(std::span<const std::int64_t>(fixed, count));
      fixed += count;
      return dims;
    } else if constexpr (std::is_same_v<T, Dynamic<RandomNumbers>>) {
      const T numbers(Storage::Type::read(dynamic));
      dynamic += Storage::Type::words;
      return numbers;
    } else if constexpr (Storage::dynamic) {
      T argument(Storage::Type::from_word(*dynamic));
      if (traced != nullptr) [[unlikely]] {
        argument.source =
            traced->traced_source(static_cast<int>(dynamic - traced->dynamic().data()));
      }
      ++dynamic;
      return argument;
    } else {
      return Storage::Type::from_word(*fixed++);
    }
  }
};

/// Description of an aggregate of arguments, without its C++ type.
struct ArgumentsInfo {
  std::span<const ArgumentField> fields;
  ArgumentsType type = 0;
  std::vector<ArgumentValue> (*values)(const Attributes& attributes) = nullptr;
  /// Errors: a value of another type than the field's; the text names the field's type.
  Attributes (*from_values)(std::span<const ArgumentValue> values) = nullptr;
  /// Zeros, false, no dims, the first dtype.
  Attributes (*blank)() = nullptr;
  /// The group of ranks among the arguments, which lives until the process ends; null: there is
  /// none, or it is not given. Null for arguments among which no group can be.
  const CallGroup* (*group)(const Attributes& attributes) = nullptr;
};

/// The facts (ArgumentsInfo) of an aggregate of arguments.
template <class A>
struct ArgumentsOf {
  template <class T>
  static consteval ArgumentField field(std::string_view name) {
    return {name, ArgumentStorage<T>::Type::name, ArgumentStorage<T>::dynamic};
  }
  template <class... T, std::size_t... I>
  static consteval std::array<ArgumentField, sizeof...(T)> make_fields(reflect::Types<T...>,
                                                                       reflect::Indices<I...>) {
    return {field<T>(reflect::field_name<A, I>())...};
  }
  using Types = reflect::FieldTypes<A>;
  static constexpr auto fields = make_fields(Types{}, reflect::indices_of(Types{}));

  static consteval ArgumentsType make_type() {
    std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    const auto add = [&hash](char c) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    };
    for (const ArgumentField& f : fields) {
      for (const char c : f.name) {
        add(c);
      }
      add(f.dynamic ? '~' : ':');
      for (const char c : f.type) {
        add(c);
      }
      add(',');
    }
    return hash;
  }
  static constexpr ArgumentsType type = make_type();

  template <class... T>
  [[gnu::always_inline]] static inline A read(const Attributes& from, reflect::Types<T...>) {
    ArgumentWords words{from.fixed().data(), from.dynamic().data(),
                        from.is_traced() ? &from : nullptr};
    return A{words.template read<T>()...};
  }

  static std::vector<ArgumentValue> values(const Attributes& attributes) {
    A a = read(attributes, Types{});
    return reflect::visit(a, []<class... T>(const T&... field) {
      std::vector<ArgumentValue> all;
      (all.push_back(ArgumentStorage<T>::Type::value(field)), ...);
      return all;
    });
  }
  template <class... T, std::size_t... I>
  static A from(std::span<const ArgumentValue> values, reflect::Types<T...>,
                reflect::Indices<I...>) {
    return A{T(ArgumentStorage<T>::Type::from_value(values[I]))...};
  }
  static Attributes from_values(std::span<const ArgumentValue> values) {
    return from(values, Types{}, reflect::indices_of(Types{}));
  }

  static Attributes blank() { return A{}; }

  /// Whether a field of this type names ranks.
  template <class T>
  static constexpr bool names_ranks =
      requires(const T& field) { ArgumentStorage<T>::Type::group(field); };
  template <class... T>
  static consteval bool any_names_ranks(reflect::Types<T...>) {
    return (names_ranks<T> || ...);
  }
  static const CallGroup* group(const Attributes& attributes) {
    A a = read(attributes, Types{});
    const CallGroup* found = nullptr;
    reflect::visit(a, [&found](const auto&... field) {
      const auto find = [&found]<class T>(const T& one) {
        if constexpr (names_ranks<T>) {
          found = ArgumentStorage<T>::Type::group(one);
        }
      };
      (find(field), ...);
    });
    return found;
  }

  static constexpr ArgumentsInfo info{
      fields, type, &values, &from_values, &blank, any_names_ranks(Types{}) ? &group : nullptr};
};

template <class A>
  requires(__is_aggregate(A) && !__is_array(A))
[[gnu::always_inline]] inline Attributes::Attributes(const A& arguments) {
  reflect::visit(arguments,
                 [this](const auto&... field) { (ArgumentWords::write(*this, field), ...); });
  words_.type = ArgumentsOf<A>::type;
  if (words_.specs != 0) [[unlikely]] {
    retain_specs();  // last: what writes a field may fail
  }
}

/// Error: the arguments are not those of the operator.
[[noreturn]] void wrong_arguments_type(const ArgumentsInfo& expected);

/// A text as a value of the type of this name; the text itself where it cannot be read as one.
ArgumentValue value_from_text(std::string_view type, std::string_view text);

/// "dim=1, keepdim=true". The text means the same in every process: of a Spec or a group of ranks
/// it has the mesh and the ranks, not an address.
std::string to_text(const ArgumentsInfo& info, const Attributes& attributes);
/// Reads to_text's form; the order does not matter. `what` begins the error's text. Errors (input):
/// an unknown, missing or repeated argument, a value of another type.
Attributes attributes_from_text(const ArgumentsInfo& info, std::string_view text,
                                std::string_view what);
/// A JSON object: {"dim": 1, "keepdim": true}; infinities and NaN are text.
std::string to_json(const ArgumentsInfo& info, const Attributes& attributes);
/// Errors (input): as attributes_from_text, and a text that is not a JSON object.
Attributes attributes_from_json(const ArgumentsInfo& info, std::string_view json,
                                std::string_view what);

/// The arguments as the aggregate that they were made from. Errors: it was another one.
template <class A>
[[gnu::always_inline]] inline A arguments_as(const Attributes& attributes) {
  if (attributes.type() != ArgumentsOf<A>::type) [[unlikely]] {
    wrong_arguments_type(ArgumentsOf<A>::info);
  }
  return ArgumentsOf<A>::read(attributes, typename ArgumentsOf<A>::Types{});
}

}  // namespace tessera
