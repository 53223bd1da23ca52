// The decode lane's operators of the "orchid" domain.
#pragma once

#include <memory>

#include "ort/api.h"

namespace orchid {

// Owns the operators; they must outlive every session that uses them.
class PagedOps {
 public:
  PagedOps();
  ~PagedOps();
  PagedOps(const PagedOps&) = delete;
  PagedOps& operator=(const PagedOps&) = delete;

  void AddTo(Ort::CustomOpDomain& domain);

 private:
  struct Ops;
  std::unique_ptr<Ops> ops_;
};

}  // namespace orchid
