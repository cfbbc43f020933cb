export module tessera.stores:store_error;

import tessera.base;

export namespace tessera::stores {

/// What a store could not do, for code that decides by it.
enum class StoreFailure : std::uint8_t {
  not_there,      // no such object, bucket, repository or revision
  no_rights,      // who asks may not do it, or has to say who it is
  temporary,      // it may pass: no connection, no time, too many requests, a server's own fault
  changed,        // the object is not the one that was asked for any more
  no_space,       // the store, or this machine, has no more room for it
  wrong_address,  // the store has no places of this name
  wrong_answer,   // the store said something that cannot be: a server of another kind, a fault
  cancelled,      // RequestLimits::cancelled said so
};

/// "not there", ...
std::string_view word_of(StoreFailure failure);

/// What a store throws. Its text has no secret. A plugin leaves fields().thing empty, and advice
/// where it has nothing better: the host adds the address, and what to do.
class StoreError : public Error {
 public:
  /// `after`: seconds after which the store wants to be asked again (Retry-After); 0: it has not
  /// said. The error's kind: not_there, no_rights and wrong_address are input, cancelled is
  /// interrupted, the others are run.
  StoreError(StoreFailure failure, ErrorFields fields, double after = 0);
  StoreFailure failure() const noexcept;
  double after() const noexcept;

 private:
  StoreFailure failure_;
  double after_;
};

}  // namespace tessera::stores
