// Makes search work in pages opened from disk: browsers refuse to start a worker from file://, so a hidden iframe runs its script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      const inside = frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => run(inside, one)), Promise.resolve());
      this.ready = run(inside, url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };

  function run(inside, url) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      script.onload = resolve;
      script.onerror = reject;
      script.src = url;
      inside.document.body.appendChild(script);
    });
  }
}
