export module tessera.nn:attachments;

import tessera.base;

namespace tessera::nn::attachment_detail {

class AttachedValue {
 public:
  virtual ~AttachedValue();
};

template <class T>
class AttachedValueOf final : public AttachedValue {
 public:
  T value;
};

/// The type's name, the same in every library made by one compiler.
template <class T>
inline constexpr std::string_view type_name() {
  return __PRETTY_FUNCTION__;
}

}  // namespace tessera::nn::attachment_detail

export namespace tessera::nn {

/// Objects that others than the tree attach to a parameter or a buffer: for each type one object,
/// which belongs to whoever declares the type (a plan, a style, an optimizer) and lives as long as
/// this. Types have external linkage, as they are told apart by their names. One thread writes.
class Attachments {
 public:
  /// The attached object; a default one where there is none.
  template <class T>
  inline const T& attached() const {
    static const T none{};
    const attachment_detail::AttachedValue* const held = find(name_of_type<T>());
    return held == nullptr ? none
                           : static_cast<const attachment_detail::AttachedValueOf<T>*>(held)->value;
  }
  /// The attached object, to be written; a default one is attached first.
  template <class T>
  inline T& attach() {
    attachment_detail::AttachedValue* held = find(name_of_type<T>());
    if (held == nullptr) {
      held = add(name_of_type<T>(), std::make_unique<attachment_detail::AttachedValueOf<T>>());
    }
    return static_cast<attachment_detail::AttachedValueOf<T>*>(held)->value;
  }

 private:
  template <class T>
  static constexpr std::string_view name_of_type() {
    constexpr std::string_view name = attachment_detail::type_name<T>();
    static_assert(name.find("(anonymous") == std::string_view::npos,
                  "types of two files could have this name: give it a namespace");
    return name;
  }
  attachment_detail::AttachedValue* find(std::string_view type) const;
  attachment_detail::AttachedValue* add(std::string_view type,
                                        std::unique_ptr<attachment_detail::AttachedValue> held);

  struct Entry {
    std::string_view type;
    std::unique_ptr<attachment_detail::AttachedValue> held;
  };
  std::vector<Entry> entries_;  // few
};

}  // namespace tessera::nn
