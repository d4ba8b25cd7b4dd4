// Offers a text to what has the focus as the browser does on Ctrl+V; answers if it is still to be inserted,
// which a page with its own listener does itself.
function paste([text]) {
  const data = new DataTransfer();
  data.setData('text/plain', text);
  const how = {clipboardData: data, bubbles: true, cancelable: true, composed: true};
  return (focused() || document.body).dispatchEvent(new ClipboardEvent('paste', how));
}
