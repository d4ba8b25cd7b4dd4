// The element at a point, or with the focus.
function target([point]) {
  return point ? at(point[0], point[1]) : focused();
}
