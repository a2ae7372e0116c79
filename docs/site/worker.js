// Search runs in a worker, and browsers start none for pages that are opened as files. There, a hidden frame takes its
// place: the same script, the same messages.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage && this.onmessage({ data }));
      const script = inside.document.createElement("script");
      script.src = new URL(address, document.baseURI);
      script.onload = () => {
        const early = this.waiting;
        this.waiting = null;
        early.forEach((data) => this.postMessage(data));
      };
      script.onerror = (error) => this.onerror && this.onerror(error);
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else setTimeout(() => this.frame.contentWindow.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
