// A part of a forward pass that the backward pass runs again (checkpoint.h), and the groups that it touches:
// their gradients come while it does.
#pragma once

#include <memory>
#include <vector>

namespace cleave {

class ParamGroup;

class Segment {
 public:
  // The first run: notes the groups that ops touch on this thread.
  class Recording {
   public:
    explicit Recording(Segment& segment);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    Segment& segment_;
    Segment* outer_;
  };

  // The second one, with its backward: a pass within the pass of the engine that runs it. finish() when it is
  // through; an exception leaves without.
  class Rerun {
   public:
    explicit Rerun(Segment& segment);
    ~Rerun();
    void finish();
    Rerun(const Rerun&) = delete;
    Rerun& operator=(const Rerun&) = delete;

   private:
    Segment& segment_;
  };

  static Segment* recording();  // on this thread; null when there is none
  static bool rerunning();
  void touched(ParamGroup& group);

 private:
  std::vector<std::shared_ptr<ParamGroup>> groups_;
};

}  // namespace cleave
